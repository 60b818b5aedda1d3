"""What each queue's procedures and roles may do on SQL Server, as its scripts say."""

import re

import pytest

from console import sql
from console.actions import install
from console.engines.mssql import PRODUCT
from tests.contract.variants import DEFAULTS, on

QUEUES = {v.design.name: v.queue("sales", "orders", "mssql") for v in on("mssql", DEFAULTS)}


def granted(design: str) -> list[str]:
    """What the roles get of such a queue."""
    return sql.script("roles.queue", PRODUCT.dialect, QUEUES[design].scope(PRODUCT)).splitlines()


@pytest.mark.parametrize("design", QUEUES)
def test_whoever_runs_as_a_user_makes_it_first(design: str) -> None:
    script = install.script(PRODUCT, QUEUES[design])
    runs_as = script.find("WITH EXECUTE AS 'dbq_owner'")
    assert (runs_as >= 0) == ("owner" in QUEUES[design].design.needs)
    if runs_as >= 0:
        assert 0 <= script.find("CREATE USER dbq_owner WITHOUT LOGIN;") < runs_as
        assert "ALTER AUTHORIZATION ON SCHEMA" not in script


def test_the_user_gets_the_sequences_and_nothing_else() -> None:
    script = install.script(PRODUCT, QUEUES["ring"])
    assert re.findall(r"(GRANT .*) TO dbq_owner;", script) == [
        f"GRANT ALTER, UPDATE, VIEW DEFINITION ON OBJECT::[sales].[orders_{name}_seq]"
        for name in ("push", "pop")
    ]


@pytest.mark.parametrize(("design", "sequence"), [("ring", "push_seq"), ("naive", "seq")])
def test_who_restores_or_pushes_many_may_draw_a_range(design: str, sequence: str) -> None:
    """sp_sequence_get_range follows no ownership chain."""
    grant = f"    GRANT UPDATE ON OBJECT::[sales].[orders_{sequence}] TO dbq_operator;"
    assert grant in granted(design)


def test_an_admin_takes_a_broker_queue_away() -> None:
    lines = [line.strip() for line in granted("broker") if "AS dbq_owner;" in line]
    assert lines == [
        f"GRANT CONTROL ON {kind} TO dbq_admin AS dbq_owner;"
        for kind in (
            "CONTRACT::[sales.orders_contract]",
            "SERVICE::[sales.orders_service]",
            "SERVICE::[sales.orders_initiator]",
        )
    ]
