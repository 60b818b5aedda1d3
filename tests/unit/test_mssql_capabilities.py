"""What a server can do, what it cannot and why, and what is said of one that does not tell."""

import dataclasses
import re
from typing import Any

import pytest

from console import sql
from console.engines import Database
from console.engines.mssql import PRODUCT, capabilities
from console.engines.mssql.capabilities import Probe, capabilities_of
from console.engines.product import Capabilities
from console.errors import ConnectionFailedError, ConsoleError, UsageError
from console.sql import templates
from tests.unit.mssql_tools import (
    ENTERPRISE,
    Odbc,
    OperationalError,
    ProgrammingError,
)

FIELDS = dataclasses.fields(Probe)


def of(**differs: Any) -> Capabilities:
    return capabilities_of(dataclasses.replace(ENTERPRISE, **differs))


def test_a_server_that_lacks_nothing() -> None:
    found = capabilities_of(ENTERPRISE)
    assert found.missing == {}
    assert found.facts == {
        "product": "SQL Server 2022",
        "edition": "Enterprise Edition (64-bit)",
        "compatibility_level": "160",
        "read_committed_snapshot": "off",
        "service_broker": "on",
        "online_rebuild": "on",
        "waits_of": "server",
    }
    assert (found.server_version, found.version_number) == ("16.0.4185.3", 160004185)
    assert (found.database, found.database_user, found.encoding) == ("orders", "dbo", "UTF-16")
    assert found.may_create
    assert found.counts_rows
    assert found.sees_all_sessions
    assert not found.read_only


@pytest.mark.parametrize(
    ("differs", "key", "reason"),
    [
        ({"sees_all_sessions": False, "database_user": "ops"}, "sessions", "ops lacks VIEW SERVER"),
        ({"sees_counters": False, "database_user": "ops"}, "rates", "ops lacks"),
        ({"impersonates_owner": False, "database_user": "ops"}, "owner", "ops may not IMPERSONATE"),
        ({"engine_edition": 5}, "broker", "Azure SQL Database has no"),
        ({"broker_enabled": False}, "broker", "Service Broker is off in the database orders"),
        ({"online_rebuild": False, "edition": "Standard"}, "online_rebuild", "Standard rebuilds"),
    ],
)
def test_what_is_missing_has_its_reason(differs: dict[str, Any], key: str, reason: str) -> None:
    found = of(**differs)
    assert list(found.missing) == [key]
    assert found.missing[key].startswith(reason)


def test_in_azure_the_database_s_right_is_what_lacks() -> None:
    found = of(engine_edition=5, sees_all_sessions=False, database_user="ops")
    assert found.missing["sessions"].startswith("ops lacks VIEW DATABASE STATE")


@pytest.mark.parametrize(
    ("version", "edition", "product"),
    [
        ("13.0.7000.253", 2, "SQL Server 2016"),
        ("15.0.4430.1", 3, "SQL Server 2019"),
        ("17.0.1000.7", 4, "SQL Server 2025"),
        ("18.0.1.1", 3, "SQL Server"),
        # Their version number stays where it was.
        ("12.0.2000.8", 5, "Azure SQL Database"),
        ("12.0.2000.8", 8, "Azure SQL Managed Instance"),
    ],
)
def test_the_product_is_named(version: str, edition: int, product: str) -> None:
    assert of(server_version=version, engine_edition=edition).facts["product"] == product


@pytest.mark.parametrize("version", ["12.0.6024.0", "11.0.7001.0", "13.0.1601.5"])
def test_a_server_that_is_too_old_is_refused(version: str) -> None:
    with pytest.raises(UsageError, match="too old") as refused:
        of(server_version=version)
    assert "2016" in refused.value.why


@pytest.mark.parametrize("edition", [3, 5])
def test_a_database_that_behaves_as_on_an_older_server_is_refused(edition: int) -> None:
    with pytest.raises(UsageError, match="The database orders is set") as refused:
        of(compatibility_level=120, engine_edition=edition)
    assert "120" in refused.value.why
    assert "COMPATIBILITY_LEVEL" in refused.value.next_step


def test_babelfish_is_recognized() -> None:
    found = of(babelfish=True, server_version="12.0.2000.8", compatibility_level=0)
    assert (found.facts["product"], found.facts["babelfish"]) == ("Babelfish", "on")
    assert {"queues", "readpast", "waitfor", "broker"} <= set(found.missing)
    assert {"sessions", "rates"} <= set(found.missing)
    assert not found.sees_all_sessions
    assert not found.counts_rows
    assert all("Babelfish" in reason for reason in found.missing.values())


def answering(odbc: Odbc, answer: Any) -> None:
    odbc.answer = lambda statement: [answer] if "dbq server.capabilities" in statement else []


def test_the_question_returns_what_is_understood() -> None:
    question = templates.statements("mssql", "server")["capabilities"].template
    ends = [re.search(rf"\bAS \[?{f.name}\]?,?$", question, re.MULTILINE) for f in FIELDS]
    places = [end.start() for end in ends if end]
    assert len(places) == len(FIELDS)
    assert places == sorted(places)


def test_it_is_asked_once(odbc: Odbc, mssql: Database) -> None:
    names = tuple(field.name for field in FIELDS)
    answering(odbc, [names, dataclasses.astuple(ENTERPRISE)])
    assert mssql.capabilities == capabilities_of(ENTERPRISE)
    assert mssql.capabilities.facts["product"] == "SQL Server 2022"
    assert sum("dbq server.capabilities" in statement for statement in odbc.sent) == 1


def test_a_server_that_cannot_be_asked_is_described_by_its_driver(
    odbc: Odbc, mssql: Database
) -> None:
    origin = "[Microsoft][ODBC Driver 18 for SQL Server][SQL Server]"
    refusal = f"[42000] {origin}'SERVERPROPERTY' is not known here. (195) (SQLExecDirectW)"
    answering(odbc, ProgrammingError("42000", refusal))
    del odbc.info[odbc.SQL_USER_NAME]
    odbc.info[odbc.SQL_DATABASE_NAME] = ""
    found = mssql.capabilities
    assert (found.server_version, found.version_number) == ("12.00.2000", 120000000)
    assert (found.database, found.database_user) == ("?", "?")
    assert found.facts == {"product": "Some Server"}
    assert not found.may_create
    assert {"sessions", "rates", "readpast", "broker", "queues"} <= set(found.missing)
    for reason in found.missing.values():
        assert reason.endswith("'SERVERPROPERTY' is not known here.")


def test_babelfish_is_recognized_where_it_lacks_a_part_of_the_question(
    odbc: Odbc, mssql: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {
        name: sql.Statement("mssql", "server", name, "one row", "SELECT 1 AS x")
        for name in ("capabilities", "babelfish")
    }
    monkeypatch.setattr(templates, "statements", lambda *_: asked)
    answers: dict[str, Any] = {
        "/* dbq server.capabilities */ SELECT 1 AS x": ProgrammingError(
            "42000",
            "[42000] [FreeTDS][SQL Server]'PARSENAME' is not known. (195) (SQLExecDirectW)",
        ),
        "/* dbq server.babelfish */ SELECT 1 AS x": [("babelfish",), (1,)],
    }
    odbc.answer = lambda statement: [answers[statement]] if statement in answers else []
    found = mssql.capabilities
    assert found.facts == {"product": "Babelfish", "babelfish": "on"}
    assert "queues" in found.missing
    assert all("Babelfish" in reason for reason in found.missing.values())


@pytest.mark.parametrize("state", ["08S01", "HYT00"])
def test_one_that_is_lost_meanwhile_is_no_limited_server(
    odbc: Odbc, mssql: Database, state: str
) -> None:
    text = f"[{state}] [Microsoft][ODBC Driver 18 for SQL Server]What it says (0) (SQLExecDirectW)"
    answering(odbc, OperationalError(state, text))
    with pytest.raises(ConsoleError) as failed:
        assert mssql.capabilities
    assert isinstance(failed.value, ConnectionFailedError) == (state == "08S01")
    assert failed.value.what == "Could not read what the server supports."


def test_the_engine_says_what_it_is() -> None:
    assert (PRODUCT.name, PRODUCT.title, PRODUCT.default_schema) == ("mssql", "SQL Server", "dbo")
    assert dict(PRODUCT.read_only_options) == {}
    assert (PRODUCT.name_limit, PRODUCT.name_unit) == (128, "characters")
    assert PRODUCT.name_length("ä🂡") == 3
    assert capabilities.OLDEST_LEVEL == 130
