"""What the doctor says of a database's settings, with a server's responses."""

from datetime import UTC, datetime

import pytest

from console.catalog import installed_queue
from console.designs import DESIGNS
from console.doctor import database_settings
from console.doctor.context import check_context
from tests.unit.mssql_tools import open_mssql, stand_in_for_pyodbc


@pytest.mark.parametrize("forced", [False, True])
def test_forced_parameterization_is_a_note(
    monkeypatch: pytest.MonkeyPatch, *, forced: bool
) -> None:
    odbc = stand_in_for_pyodbc(monkeypatch)
    sent = []

    def answer(statement: str) -> list[object]:
        if "AS incarnation" in statement:
            return [(("incarnation", "sees_writers", "now"), ("one", True, datetime.now(UTC)))]
        if "is_parameterization_forced" not in statement:
            return []
        sent.append(statement)
        return [(("forced",), (forced,))]

    odbc.answer = answer
    database = open_mssql()
    queue = installed_queue("queues", "orders", DESIGNS["fifo"], {})
    with check_context(database, queue) as context:
        found = list(database_settings.CHECKS.run(context))
    database.close()
    assert context.unseen == []
    assert len(sent) == 1
    assert [finding.code.name for finding in found] == ["parameterization_forced"] * forced
    assert all(finding.code.severity.word == "note" for finding in found)
    assert all("SET PARAMETERIZATION SIMPLE" in finding.code.judgement for finding in found)
