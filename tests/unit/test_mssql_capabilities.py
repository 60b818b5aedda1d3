"""A server's capabilities, what it lacks and why, and servers that refuse the probe."""

import dataclasses
import re
from typing import Any

import pytest

from console import sql
from console.actions.pause import callers
from console.catalog import installed_queue
from console.designs import DESIGNS
from console.engines import Database
from console.engines.mssql import PRODUCT, capabilities
from console.engines.mssql.capabilities import Probe, capabilities_of
from console.engines.product import Capabilities
from console.errors import ConnectionFailedError, ConsoleError, RefusedError
from console.monitor.waits import watch
from console.sql import templates
from tests.unit.mssql_tools import ENTERPRISE, Odbc, OperationalError, ProgrammingError

FIELDS = dataclasses.fields(Probe)


def capabilities_with(**differs: Any) -> Capabilities:
    return capabilities_of(dataclasses.replace(ENTERPRISE, **differs))


def test_a_server_with_all_capabilities() -> None:
    capabilities = capabilities_of(ENTERPRISE)
    assert capabilities.missing == {}
    assert capabilities.facts == {
        "product": "SQL Server 2022",
        "edition": "Enterprise Edition (64-bit)",
        "compatibility_level": "160",
        "read_committed_snapshot": "off",
        "service_broker": "on",
        "online_rebuild": "on",
        "waits_of": "server",
    }
    assert (capabilities.server_version, capabilities.version_number) == ("16.0.4185.3", 160004185)
    assert (capabilities.database, capabilities.database_user, capabilities.encoding) == (
        "orders",
        "dbo",
        "UTF-16",
    )
    assert capabilities.may_create
    assert capabilities.counts_rows
    assert capabilities.sees_all_sessions
    assert not capabilities.read_only


@pytest.mark.parametrize(
    ("differs", "key", "reason"),
    [
        ({"sees_counters": False, "database_user": "ops"}, "rates", "ops lacks"),
        ({"impersonates_owner": False, "database_user": "ops"}, "owner", "ops may not IMPERSONATE"),
        ({"engine_edition": 5}, "broker", "Azure SQL Database has no"),
        ({"broker_enabled": False}, "broker", "Service Broker is off in the database orders"),
        ({"online_rebuild": False, "edition": "Standard"}, "online_rebuild", "Standard rebuilds"),
    ],
)
def test_a_missing_capability_has_its_reason(
    differs: dict[str, Any], key: str, reason: str
) -> None:
    found = capabilities_with(**differs)
    assert list(found.missing) == [key]
    assert found.missing[key].startswith(reason)


def test_without_the_right_to_see_sessions_nothing_asks_for_waits_or_locks(
    odbc: Odbc, mssql: Database
) -> None:
    """The server refuses those views; a pause is planned and a table maintained without them."""
    missing = capabilities_with(sees_all_sessions=False, database_user="ops").missing
    assert missing.keys() == {"sessions", "waits"}
    assert all(why.startswith("ops lacks VIEW SERVER STATE") for why in missing.values())
    hidden = [[("sessions",), (None,)]]
    odbc.answer = lambda statement: hidden if "pause.calling" in statement else []
    design = DESIGNS["fifo"]
    queue = installed_queue("dbo", "q", design, design.complete_options({}, "mssql"))
    assert callers(mssql, queue) is None
    (sent,) = (statement for statement in odbc.sent if "pause.calling" in statement)
    assert sent.index("VIEW SERVER STATE") < sent.index("sys.dm_tran_locks")


def test_in_azure_the_missing_right_is_that_of_the_database() -> None:
    capabilities = capabilities_with(engine_edition=5, sees_all_sessions=False, database_user="ops")
    assert capabilities.missing["sessions"].startswith("ops lacks VIEW DATABASE STATE")


@pytest.mark.parametrize(
    ("version", "edition", "product"),
    [
        ("14.0.3520.4", 2, "SQL Server 2017"),
        ("15.0.4430.1", 3, "SQL Server 2019"),
        ("17.0.1000.7", 4, "SQL Server 2025"),
        ("18.0.1.1", 3, "SQL Server"),
        # Their version number does not change.
        ("12.0.2000.8", 5, "Azure SQL Database"),
        ("12.0.2000.8", 8, "Azure SQL Managed Instance"),
    ],
)
def test_the_product_is_named(version: str, edition: int, product: str) -> None:
    assert (
        capabilities_with(server_version=version, engine_edition=edition).facts["product"]
        == product
    )


@pytest.mark.parametrize("version", ["12.0.6024.0", "11.0.7001.0", "13.0.7000.253"])
def test_a_server_that_is_too_old_is_refused(version: str) -> None:
    with pytest.raises(RefusedError, match="too old") as refused:
        capabilities_with(server_version=version)
    assert "2017" in refused.value.why


@pytest.mark.parametrize("edition", [3, 5])
def test_a_database_with_an_old_compatibility_level_is_refused(edition: int) -> None:
    with pytest.raises(RefusedError, match="level of the database orders") as refused:
        capabilities_with(compatibility_level=120, engine_edition=edition)
    assert "120" in refused.value.why
    assert "COMPATIBILITY_LEVEL" in refused.value.next_step


def test_waits_that_are_hidden_are_reported_once(odbc: Odbc, mssql: Database) -> None:
    probe = dataclasses.replace(ENTERPRISE, sees_all_sessions=False)
    answer_probe(odbc, [tuple(vars(probe)), tuple(vars(probe).values())])
    assert list(watch(mssql, [], seconds=0).missing) == ["waits"]
    assert not any("sys.dm_tran" in statement for statement in odbc.sent)


def test_babelfish_is_recognized() -> None:
    capabilities = capabilities_with(
        babelfish=True, server_version="12.0.2000.8", compatibility_level=0
    )
    assert (capabilities.facts["product"], capabilities.facts["babelfish"]) == ("Babelfish", "on")
    assert {"queues", "readpast", "waitfor", "broker"} <= set(capabilities.missing)
    assert {"sessions", "rates"} <= set(capabilities.missing)
    assert not capabilities.sees_all_sessions
    assert not capabilities.counts_rows
    assert all("Babelfish" in reason for reason in capabilities.missing.values())


def answer_probe(odbc: Odbc, answer: Any) -> None:
    odbc.answer = lambda statement: [answer] if "dbq server.capabilities" in statement else []


def test_the_probe_statement_returns_the_fields_in_order() -> None:
    template = templates.statements("mssql", "server")["capabilities"].template
    ends = [re.search(rf"\bAS \[?{f.name}\]?,?$", template, re.MULTILINE) for f in FIELDS]
    positions = [end.start() for end in ends if end]
    assert len(positions) == len(FIELDS)
    assert positions == sorted(positions)


def test_capabilities_are_queried_once(odbc: Odbc, mssql: Database) -> None:
    names = tuple(field.name for field in FIELDS)
    answer_probe(odbc, [names, dataclasses.astuple(ENTERPRISE)])
    assert mssql.capabilities == capabilities_of(ENTERPRISE)
    assert mssql.capabilities.facts["product"] == "SQL Server 2022"
    assert sum("dbq server.capabilities" in statement for statement in odbc.sent) == 1


def test_a_server_that_refuses_the_probe_is_described_by_its_driver(
    odbc: Odbc, mssql: Database
) -> None:
    origin = "[Microsoft][ODBC Driver 18 for SQL Server][SQL Server]"
    refusal = f"[42000] {origin}'SERVERPROPERTY' is not known here. (195) (SQLExecDirectW)"
    answer_probe(odbc, ProgrammingError("42000", refusal))
    del odbc.info[odbc.SQL_USER_NAME]
    odbc.info[odbc.SQL_DATABASE_NAME] = ""
    capabilities = mssql.capabilities
    assert (capabilities.server_version, capabilities.version_number) == ("12.00.2000", 120000000)
    assert (capabilities.database, capabilities.database_user) == ("?", "?")
    assert capabilities.facts == {"product": "Some Server"}
    assert not capabilities.may_create
    assert {"sessions", "rates", "readpast", "broker", "queues"} <= set(capabilities.missing)
    for reason in capabilities.missing.values():
        assert reason.endswith("'SERVERPROPERTY' is not known here.")


def test_babelfish_is_recognized_even_if_it_refuses_the_probe(
    odbc: Odbc, mssql: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    statements = {
        name: sql.Statement("mssql", "server", name, "one row", "SELECT 1 AS x")
        for name in ("capabilities", "babelfish")
    }
    monkeypatch.setattr(templates, "_find", lambda _engine, _file, name: statements.get(name))
    answers: dict[str, Any] = {
        "/* dbq server.capabilities */ SELECT 1 AS x": ProgrammingError(
            "42000", "[42000] [FreeTDS][SQL Server]'PARSENAME' is not known. (195) (SQLExecDirectW)"
        ),
        "/* dbq server.babelfish */ SELECT 1 AS x": [("babelfish",), (1,)],
    }
    odbc.answer = lambda statement: [answers[statement]] if statement in answers else []
    capabilities = mssql.capabilities
    assert capabilities.facts == {"product": "Babelfish", "babelfish": "on"}
    assert "queues" in capabilities.missing
    assert all("Babelfish" in reason for reason in capabilities.missing.values())


@pytest.mark.parametrize("state", ["08S01", "HYT00"])
def test_a_connection_lost_during_the_probe_is_an_error(
    odbc: Odbc, mssql: Database, state: str
) -> None:
    text = f"[{state}] [Microsoft][ODBC Driver 18 for SQL Server]What it says (0) (SQLExecDirectW)"
    answer_probe(odbc, OperationalError(state, text))
    with pytest.raises(ConsoleError) as failed:
        assert mssql.capabilities
    assert isinstance(failed.value, ConnectionFailedError) == (state == "08S01")
    assert failed.value.what == "Could not read what the server supports."


def test_the_names_and_limits_of_the_engine() -> None:
    assert (PRODUCT.name, PRODUCT.title, PRODUCT.default_schema) == (
        "mssql",
        "SQL Server",
        "queues",
    )
    assert dict(PRODUCT.read_only_options) == {}
    assert (PRODUCT.name_limit, PRODUCT.name_unit) == (128, "characters")
    assert PRODUCT.name_length("ä🂡") == 3
    assert capabilities.OLDEST_LEVEL == 130
