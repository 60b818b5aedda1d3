"""The audit screen: the table, the filter, the details of an action, the form that undoes it."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from textual.widgets import Input

from console.catalog.audit import Entry
from console.errors import ConnectionFailedError
from console.tui.dialogs.audit_entry import AuditEntryDialog, filters_of, follow_up
from console.tui.findings import QueueKey
from console.tui.open_connection import OpenConnection
from console.tui.screens import audit
from console.tui.screens.audit import AuditEntries, AuditScreen
from console.views.audit import VIEW, AuditRow
from console.views.view import Search, parse
from tests.tui.opened import Opened, alone, conn

AT = datetime(2026, 3, 29, 2, 0, 0, tzinfo=UTC)
ENTRY = Entry(
    action_id=17,
    schema="public",
    queue="mail",
    verb="purge",
    started_at=AT,
    last_at=AT + timedelta(seconds=64),
    ended_at=AT + timedelta(seconds=64),
    operator="ann@etl01",
    database_user="ops",
    session="pid=4711 start=2026-03-29T01:00:00.000000Z",
    connection="prod",
    filters="state=error error~time out",
    cutoff=AT,
    planned=5_000,
    selected=5_000,
    done=4_990,
    skipped=8,
    failed=2,
    outcome="done",
    detail="reason: [bold]bad\x1b[31m[/bold]",
)
RUNNING = replace(ENTRY, action_id=18, verb="requeue", ended_at=None, outcome="running", failed=0)
INSTALL = replace(
    ENTRY, action_id=3, verb="install", planned=0, selected=0, done=0, skipped=0, failed=0,
    filters="", cutoff=None, detail="design fifo", operator="bob@pc", queue="orders",
)  # fmt: skip


@pytest.fixture(autouse=True)
def requested(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The requests to the databases, which return nothing."""
    found: list[tuple[Any, ...]] = []

    def read_all(
        connections: Sequence[OpenConnection], search: object, key: QueueKey | None = None
    ) -> AuditEntries:
        found.append((tuple(connection.name for connection in connections), search, key))
        return AuditEntries()

    monkeypatch.setattr(audit, "read_all", read_all)
    return found


async def shown(console: Opened, *lines: AuditRow, **more: Any) -> AuditScreen:
    """The screen, with these rows."""
    opened_screen = await console.opens(AuditScreen, console.app.open_audit, **more)
    await console.until(lambda: not opened_screen._fetch.busy)
    opened_screen.show(AuditEntries(lines))
    await console.pilot.pause()
    return opened_screen


def text_of(screen: AuditScreen, selector: str) -> str:
    return str(screen.query_one(selector).render())


async def test_each_action_has_a_row_and_the_cursor_stays_on_its_action() -> None:
    async with alone(connections=[conn("prod")]) as console:
        screen = await shown(console, AuditRow(ENTRY), AuditRow(INSTALL))
        table = screen.table
        cells = {name: cell.text for name, cell in table.cells(table.keys[0]).items()}
        assert cells["verb"] == "purge"
        assert cells["done"] == "4,990"
        assert cells["when"] == "03-29 02:00:00"
        await console.press("j")
        assert table.row == AuditRow(INSTALL)
        screen.show(
            AuditEntries((AuditRow(RUNNING, alive=False), AuditRow(ENTRY), AuditRow(INSTALL)))
        )
        await console.pilot.pause()
        assert table.row == AuditRow(INSTALL)
        assert "interrupted" in console.picture


async def test_a_purge_is_shown_in_full_and_escaped_and_leads_to_its_restore(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with alone(connections=[conn("prod")], size=(50, 14)) as console:
        opened_actions: list[tuple[Any, ...]] = []
        monkeypatch.setattr(
            console.app,
            "open_action",
            lambda *words, **options: opened_actions.append((*words, options)),
        )
        await shown(console, AuditRow(ENTRY), AuditRow(INSTALL))
        console.shows("purge", "public.ma")
        await console.press("enter")
        assert console.is_at(AuditEntryDialog)
        assert "purge" in console.picture
        assert "\x1b" not in console.picture
        await console.resize(80, 24)
        console.shows("[bold]bad␛[31m[/bold]", "restore --action 17")
        await console.press("a")
        assert opened_actions == [(("prod", "public", "mail"), "restore", (), {"action": "17"})]
        assert console.is_at(AuditScreen)


async def test_the_database_filters_by_verb_and_time_and_the_screen_by_words(
    requested: list[tuple[Any, ...]],
) -> None:
    async with alone(connections=[conn("prod")]) as console:
        screen = await shown(console, AuditRow(ENTRY), AuditRow(INSTALL))
        await console.press("slash", "v")
        screen.query_one("#filter", Input).value = "verb=purge since=1d ann"
        await console.press("enter")
        assert requested[-1][1].values == {"verb": "purge", "since": 86_400}
        await console.until(lambda: not screen._fetch.busy)
        screen.show(AuditEntries((AuditRow(ENTRY), AuditRow(INSTALL))))
        await console.pilot.pause()
        assert [*screen.table.keys] == [AuditRow(ENTRY).key]
        await console.press("escape")
        assert requested[-1][1] == Search()
        await console.until(lambda: not screen._fetch.busy)
        screen.show(AuditEntries((AuditRow(ENTRY), AuditRow(INSTALL))))
        assert len(screen.table.keys) == 2
        await console.press("slash")
        screen.query_one("#filter", Input).value = "since=nix"
        await console.pilot.pause()
        assert "not a duration" in text_of(screen, "#audit-head")
        await console.press("escape", "escape")
        assert not console.is_at(AuditScreen)


async def test_a_failed_connection_is_reported_and_not_shown_as_without_actions() -> None:
    async with alone(connections=[conn("prod"), conn("stage")]) as console:
        screen = await shown(console)
        assert "No actions here yet" in console.picture
        error = ConnectionFailedError("Could not read the audit.", why="refused", next_step="Wait.")
        screen.show(AuditEntries(errors=(("prod", error),)))
        await console.pilot.pause()
        console.shows("Could not read the audit.", "refused", "Wait.")
        assert "No actions here yet" not in console.picture
        screen.show(AuditEntries((AuditRow(ENTRY, None, "prod"), AuditRow(ENTRY, None, "stage"))))
        assert len(screen.table.keys) == 2, "numbers are a database's own"
        screen.show(AuditEntries((AuditRow(ENTRY, None, "prod"),), (("stage", error),)))
        await console.pilot.pause()
        assert "stage: refused" in text_of(screen, "#audit-head")
        assert len(screen.table.keys) == 2, "what it said before stays"


def test_an_interrupted_action_continues_with_the_same_filters() -> None:
    follow = follow_up(AuditRow(RUNNING, alive=False))
    assert follow is not None
    assert (follow.verb, follow.filters) == ("requeue", ("state=error", "error~time out"))
    assert follow_up(AuditRow(RUNNING, alive=True)) is None
    assert follow_up(AuditRow(INSTALL)) is None
    assert filters_of(replace(ENTRY, filters="of another version")) == ()


def test_a_filter_becomes_the_options_of_the_equivalent_command() -> None:
    search = parse(VIEW, "verb=purge since=1d running mail since=2d operator=")
    assert search.command_words == ["--verb", "purge", "--since", "2d", "--running"]
    assert search.words == ("mail",)
