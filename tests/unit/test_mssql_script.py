"""Printed installations on SQL Server: one transaction, and what roles may do; arrays."""

import json
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console import sql
from console.actions import install
from console.engines.mssql import PRODUCT
from console.errors import UsageError
from tests.contract.variants import DEFAULTS, on

GUARD = "IF @@ERROR <> 0 OR @@TRANCOUNT = 0 SET NOEXEC ON;"


def batches(script: str) -> list[str]:
    assert script.endswith("\nGO\n")
    return [batch.strip() for batch in script.split("\nGO\n") if batch.strip()]


def test_a_script_is_one_transaction_that_stops_at_the_first_error() -> None:
    pieces = ["CREATE TABLE a (x int);\nGO\nCREATE PROCEDURE b AS SELECT 1;", "\nSELECT 2;\nGO\n"]
    script = PRODUCT.as_script("-- What it is.", pieces)
    check, first, *middle, last = batches(script)
    assert check.startswith("-- What it is.\n")
    assert check.endswith("SET NOEXEC ON;\nEND;")
    assert first.endswith("\nBEGIN TRANSACTION;")
    assert "QUOTED_IDENTIFIER ON;" in first
    assert "SET XACT_ABORT ON;" in first
    # CREATE PROCEDURE has to begin its batch, so each is followed by a batch with the guard.
    assert middle == [
        "CREATE TABLE a (x int);",
        GUARD,
        "CREATE PROCEDURE b AS SELECT 1;",
        GUARD,
        "SELECT 2;",
        GUARD,
    ]
    commands = [line.strip() for line in last.splitlines() if not line.startswith("--")]
    assert commands.index("COMMIT TRANSACTION;") < commands.index("SET NOEXEC OFF;")
    done = commands.index("IF @@TRANCOUNT = 0 SET @done = 1;")
    assert commands.index("COMMIT TRANSACTION;") < done < commands.index("SET NOEXEC OFF;")
    rolls_back = next(line for line in commands if "ROLLBACK" in line)
    assert commands.index(rolls_back) > commands.index("SET NOEXEC OFF;")


def test_a_script_in_an_open_transaction_leaves_it_alone() -> None:
    """Of a tab of SSMS or a migration tool: rolled back, its own work would be gone too."""
    check, first, *_, last = batches(PRODUCT.as_script("--", ["SELECT 1;"]))
    assert "WHEN @@TRANCOUNT > 0" in check
    assert "WHEN @@OPTIONS & 2 = 2" in check  # the next read of a table would begin one
    assert "BEGIN TRANSACTION" not in check
    assert check.index("CREATE TABLE #dbq_refused") < check.index("SET NOEXEC ON")
    assert "#dbq_refused" not in first
    (rolls_back,) = (line for line in last.splitlines() if "ROLLBACK" in line)
    assert rolls_back == (
        "IF @@TRANCOUNT > 0 AND OBJECT_ID(N'tempdb..#dbq_refused') IS NULL ROLLBACK TRANSACTION;"
    )


@pytest.mark.parametrize(
    "name", ["[a\nGO\nb]", "[a\r\n  go 5\nb]", "'x\n:r other.sql'", "N'a\n!!dir'", "[a$(b)]"]
)
def test_a_text_that_a_client_would_take_for_a_command_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="cannot be printed"):
        PRODUCT.as_script("--", [f"SELECT {name};"])


@pytest.mark.parametrize(
    "harmless", ["[GO]", "'GO'", "[a\nb]", "-- $(x)", "/* a\n:b */", "[it's]", "'[\n]'", "[a]]\ng]"]
)
def test_a_text_that_only_resembles_a_command_is_printed(harmless: str) -> None:
    assert harmless in PRODUCT.as_script("--", [f"SELECT 1 {harmless}"])


@given(st.lists(st.text(st.characters(codec="utf-8")) | st.binary(), max_size=5))
def test_an_array_is_json_text_with_hexadecimal_bytes(values: list[str | bytes]) -> None:
    array = PRODUCT.array(values)
    assert isinstance(array, str)
    document = json.loads(array)
    assert document == [v if isinstance(v, str) else v.hex() for v in values]


def test_names_and_literals_are_quoted_without_a_connection() -> None:
    assert sql.quote_identifier(PRODUCT.dialect, "a]b [c]%") == "[a]]b [c]]%]"
    assert sql.quote_literal(PRODUCT.dialect, "it's ä") == "N'it''s ä'"


QUEUES = {v.design.name: v.queue("sales", "orders", "mssql") for v in on("mssql", DEFAULTS)}


def granted(design: str) -> list[str]:
    """The grants to roles on such a queue."""
    return sql.script("roles.queue", PRODUCT.dialect, QUEUES[design].scope(PRODUCT)).splitlines()


def test_the_user_of_a_procedure_is_created_before_it() -> None:
    for queue in QUEUES.values():
        script = install.script(PRODUCT, queue)
        runs_as = script.find("WITH EXECUTE AS 'dbq_owner'")
        assert (runs_as >= 0) == ("owner" in queue.design.needs)
        if runs_as >= 0:
            assert 0 <= script.find("CREATE USER dbq_owner WITHOUT LOGIN;") < runs_as
            assert "ALTER AUTHORIZATION ON SCHEMA" not in script


def test_dbq_owner_gets_rights_on_the_sequences_only() -> None:
    script = install.script(PRODUCT, QUEUES["ring"])
    assert re.findall(r" +(GRANT .*) TO dbq_owner;", script) == [
        f"GRANT ALTER, UPDATE, VIEW DEFINITION ON OBJECT::[sales].[orders_{name}_seq]"
        for name in ("push", "pop")
    ]


def test_queues_go_into_a_schema_of_dbq_owners_and_nobody_gets_one_of_dbos() -> None:
    """Who may create procedures in a schema of dbo's reads all that dbo owns."""
    queue = replace(QUEUES["fifo"], schema="queues")
    script = install.script(PRODUCT, queue)
    owner = script.index("CREATE USER dbq_owner WITHOUT LOGIN;")
    schema = script.index("CREATE SCHEMA [queues] AUTHORIZATION dbq_owner")
    assert owner < schema < script.index("CREATE TABLE [queues].[orders]")
    for schema_name in ("queues", "dbo"):
        roles = sql.script("roles.roles", PRODUCT.dialect, sql.Scope({"schema": schema_name}))
        (grant,) = re.findall(r"IF (EXISTS .*)\n +GRANT ALTER, CONTROL ON SCHEMA", roles)
        assert "principal_id = DATABASE_PRINCIPAL_ID(N'dbq_owner')" in grant


def test_the_catalogs_schema_is_dbos_and_not_its_creators() -> None:
    """Its owner deletes from the audit: whom dbq_admin may impersonate must not own it."""
    script = install.script(PRODUCT, QUEUES["fifo"])
    condition = r"IF SCHEMA_ID\(N'dbq'\) IS NULL(.*)\n +EXEC \(N'(CREATE SCHEMA dbq.*)'\);"
    assert re.findall(condition, script) == [
        (
            " AND HAS_PERMS_BY_NAME(N'dbo', N'USER', N'IMPERSONATE') = 1",
            "CREATE SCHEMA dbq AUTHORIZATION dbo",
        ),
        ("", "CREATE SCHEMA dbq"),
    ]


def test_operators_may_draw_a_range_of_a_rings_numbers() -> None:
    """sp_sequence_get_range follows no ownership chain."""
    grant = "    GRANT UPDATE ON OBJECT::[sales].[orders_push_seq] TO dbq_operator;"
    assert grant in granted("ring")


def test_no_procedure_that_runs_as_its_caller_needs_more_than_execute() -> None:
    """sp_sequence_get_range follows no ownership chain, and neither does dynamic SQL."""
    for queue in QUEUES.values():
        script = re.sub(r"--[^\n]*", "", install.script(PRODUCT, queue))
        for procedure in re.split(r"(?m)^GO$", script):
            if "CREATE OR ALTER PROCEDURE" in procedure and "EXECUTE AS" not in procedure:
                assert "sp_sequence_get_range" not in procedure
                assert not re.search(r"EXEC \(@", procedure)


def test_admins_may_drop_the_objects_of_a_broker_queue() -> None:
    lines = [line.strip() for line in granted("broker") if "AS dbq_owner;" in line]
    assert lines == [
        f"GRANT CONTROL ON {kind} TO dbq_admin AS dbq_owner;"
        for kind in (
            "CONTRACT::[sales.orders_contract]",
            "SERVICE::[sales.orders_service]",
            "SERVICE::[sales.orders_initiator]",
        )
    ]
