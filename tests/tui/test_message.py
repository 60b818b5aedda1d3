"""One message: followed from state to state, its payload on demand, masked until it is revealed."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Input

from console.actions.export import reveal
from console.actions.pop import complete, pop_many
from console.actions.push import push_many
from console.catalog import audit
from console.engines import Database
from console.errors import ConnectionFailedError, RefusedError
from console.monitor.message import PastAttempt
from console.monitor.messages import read_page
from console.monitor.owners import Evidence
from console.rights import Rights
from console.tui.open_connection import OpenConnection
from console.tui.payloads import PayloadForm
from console.tui.screens.message import FIRST_BYTES, MessageScreen, ReadMessage
from console.tui.text import TextView
from tests.tui.acting import make
from tests.tui.one_tab import KEY, RecordingNavigator
from tests.tui.opened import Opened, alone, threads_ended
from tests.tui.test_messages import message

AT = datetime(2026, 3, 29, 2, 0, 0, tzinfo=UTC)
FAILED = message(
    "17",
    "error",
    error="no route\nto \x1b[31mhost [bold]",
    pushed_at=AT,
    done_at=AT,
    claimed_by="pid=4711 start=x consumer=etl",
    attempts=3,
)


@asynccontextmanager
async def opened(
    conn: OpenConnection | None = None, key: str = "error,,17", size: tuple[int, int] = (80, 24)
) -> AsyncIterator[tuple[Opened, MessageScreen, RecordingNavigator]]:
    async with alone("prod", size=size, connections=[] if conn is None else [conn]) as console:
        navigator: Any = RecordingNavigator()
        console.app.context.navigator = navigator
        screen = MessageScreen(console.app.context, KEY, key)
        console.app.push_screen(screen)
        await console.pilot.pause()
        yield console, screen, navigator
    threads_ended()


async def laid_out(console: Opened, screen: MessageScreen) -> None:
    await console.until(lambda: screen.view.layout_result and not screen.view.laying_out)


def text_of(screen: MessageScreen, name: str) -> str:
    return screen.query_one(f"#message-{name}", TextView).plain_text


def payload(text: str | bytes, *, cut: bool = False, **more: Any) -> ReadMessage:
    message = replace(FAILED, payload=text, payload_cut=cut, payload_bytes=len(text), **more)
    return ReadMessage(message, payload_bytes=FIRST_BYTES)


async def test_a_message_shows_its_state_times_owner_and_error_and_later_that_it_is_gone() -> None:
    async with opened() as (console, screen, navigator):
        screen.show_result(ReadMessage(None))
        await console.press("a", "y", "enter")
        assert "gone: popped, purged or archived" in text_of(screen, "head")
        await console.press("w", *"q1x", "escape")
        assert console.app.screen is screen
        screen.show_result(ReadMessage(FAILED, Evidence.GONE))
        await console.pilot.pause()
        drawn = console.picture
        for words in (
            *("public.mail", "message 17", "error for 1.0 s", "attempts 3", "payload 9 bytes"),
            *("pushed 2026-03-29 02:00:00 UTC", "etl (pid=4711 start=x)", "owner gone"),
            *("error  no route", "to ␛[31mhost [bold]", "Enter reads the payload"),
        ):
            assert words in drawn
        await console.press("a")
        assert navigator.calls == [("actions", KEY, "id=17")]
        screen.show_result(ReadMessage(None))
        await console.pilot.pause()
        assert "GONE" in text_of(screen, "head")
        assert "attempts 3" in text_of(screen, "head")
        screen.show_error(ConnectionFailedError("Could not look.", why="it is away"))
        assert "it is away" in text_of(screen, "foot")
        await console.press("escape")
        assert console.app.screen is not screen


async def test_n_plans_to_make_a_message_ready_and_past_attempts_are_below_the_error() -> None:
    past = (
        PastAttempt(AT, "pid=4711 start=x consumer=etl", 3, "no route"),
        PastAttempt(AT, None, 2, None),
    )
    async with opened(size=(120, 40)) as (console, screen, navigator):
        for state in ("error", "claimed", "scheduled", "ready"):
            screen.show_result(ReadMessage(replace(FAILED, state=state)))
            await console.press("n")
        expected: list[tuple[object, ...]] = [
            ("requeue", KEY, "id=17"),
            ("release", KEY, "id=17"),
            ("reschedule", KEY, "id=17", ("in", "0s")),
        ]
        assert navigator.calls == expected
        screen.show_result(ReadMessage(replace(FAILED, history=past)))
        await console.pilot.pause()
        console.shows(
            "error  no route",
            "attempt 3, 2026-03-29 02:00:00 UTC, etl (pid=4711 start=x): error no route",
            "attempt 2, 2026-03-29 02:00:00 UTC, ?: released",
        )
        screen.show_result(ReadMessage(replace(FAILED, state="ready", error=None, history=past)))
        await console.pilot.pause()
        assert "attempt 2" in console.picture
        screen.show_result(ReadMessage(replace(FAILED, state="error")))
        screen.show_result(ReadMessage(None))
        await console.press("n")
        assert navigator.calls == expected, "what is gone cannot be requeued"


async def test_v_switches_a_payload_between_json_text_and_hex(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with opened() as (console, screen, _):
        copied: list[str] = []
        monkeypatch.setattr(console.app, "copy_to_clipboard", copied.append)
        text = '{"n": 1.10, "in": {"x": [1]}, "evil": "[bold]\u202e\\u0000"}'
        screen.show_result(payload(text))
        await laid_out(console, screen)
        assert screen.view.form is PayloadForm.JSON
        assert '"evil": "[bold]<U+202E>\\u0000"' in console.picture
        await console.press("j", "j", "enter")
        await console.until(lambda: '▸ "in": { … }' in console.picture)
        await console.press("v")
        await console.until(lambda: screen.view.layout_result.form is PayloadForm.TEXT)  # type: ignore[union-attr]
        await console.press("v")
        await console.until(lambda: "00000000  7b 22 6e 22" in console.picture)
        await console.press("y")
        assert copied == [text]
        screen.show_result(payload(b"\x00\xff" * 500))
        for size in ((160, 48), (50, 14), (60, 20)):
            await console.resize(*size)
            await console.until(lambda: "00000000  00 ff" in console.picture)


async def test_a_cut_payload_says_so_and_m_reads_more() -> None:
    async with opened() as (console, screen, _):
        requested: list[int | None] = []
        screen._load = lambda size=None, **_: requested.append(size)  # type: ignore[method-assign]
        screen.show_result(payload('{"a": "' + "x" * 100, cut=True))
        await laid_out(console, screen)
        assert "the first 65,536 bytes of 107; m reads more" in text_of(screen, "foot")
        await console.press("m")
        assert 8 * FIRST_BYTES in requested


async def test_a_payload_of_ten_megabytes_does_not_block_the_screen() -> None:
    async with opened() as (console, screen, _):
        screen.show_result(payload("x" * 10_000_000))
        turns = 0
        while screen.view.layout_result is None or screen.view.laying_out:
            await asyncio.sleep(0)  # the event loop runs while a thread lays it out
            turns += 1
        assert turns > 0
        await console.press("G")
        assert screen.view.cursor == len(screen.view.rows) - 1 > 100_000
        assert "xxxx" in console.picture


def masking(database: Any, rights: Rights = Rights.OPERATOR) -> OpenConnection:
    return OpenConnection("prod", database, rights, masks=(re.compile(r"card \d+"),))


async def test_a_message_is_revealed_written_and_followed_on_a_server(
    database: Database, tmp_path: Path
) -> None:
    """Masked until an operator reveals it, which is audited; written to a file; finally gone."""
    queue = make(database, "mail", "claim", {"payload": "text"})
    with database.transaction("push") as connection:
        push_many(connection, queue, ["card 4711 is [b]mine"])
    key = read_page(database, queue, limit=100).messages[7].key
    async with opened(masking(database, Rights.READ_ONLY), key) as (console, screen, _):
        await console.until(lambda: screen.message is not None)
        await console.press("R", "y")
        await console.until(lambda: "needs the right operator" in text_of(screen, "foot"))
        assert not screen.revealed
    last = json.loads(audit.local_file().read_text().splitlines()[-1])
    assert (last["verb"], last["outcome"]) == ("reveal", "refused")
    async with opened(masking(database), key) as (console, screen, _):
        await console.until(lambda: screen.message is not None)
        assert (screen.message or FAILED).state == "ready"
        await console.press("enter")
        await console.until(lambda: "*** is [b]mine" in console.picture)
        await write(console, screen, tmp_path / "masked")
        assert (tmp_path / "masked").read_text() == "*** is [b]mine"
        await console.press("R", "escape", "R", "enter")
        assert not screen.revealed
        await console.press("R", "y")
        await console.until(lambda: "card 4711 is [b]mine" in console.picture)
        assert "The audit has it" in text_of(screen, "foot")
        with database.transaction("look") as connection:
            entries = audit.entries(connection, audit.EntryFilter(verb="reveal"))
        assert [(entry.queue, entry.filters) for entry in entries] == [("mail", f"key={key}")]
        await write(console, screen, tmp_path / "masked")
        assert "already exists" in text_of(screen, "foot")
        with database.transaction("pop") as connection:
            popped = pop_many(connection, queue, 100, "tester")
        screen._load()
        await console.until(lambda: "claimed for" in text_of(screen, "head"))
        assert "owner" in text_of(screen, "head")
        with database.transaction("complete") as connection:
            for message in popped:
                complete(connection, queue, message)
        screen._load()
        await console.until(lambda: screen.gone)
        assert "card 4711 is [b]mine" in console.picture


async def write(console: Opened, screen: MessageScreen, path: Path) -> None:
    await console.press("w")
    screen.query_one("#message-file", Input).value = str(path)
    await console.press("enter")
    await console.until(lambda: "writing" not in text_of(screen, "foot"))


def test_a_reveal_is_recorded_in_the_database_or_on_this_machine_or_refused(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise RefusedError("Could not begin.", why="it is a standby")

    queue = make(database, "mail", "fifo", {})
    key = read_page(database, queue).messages[0].key
    monkeypatch.setattr(audit.ActionRecord, "begin", refuse)
    revealed = reveal(database, queue, key, rights=Rights.OPERATOR, payload_bytes=100)
    assert (revealed.only_locally, revealed.message is not None) == (True, True)
    last = json.loads(audit.local_file().read_text().splitlines()[-1])
    assert (last["verb"], last["outcome"]) == ("reveal", "done")
    assert last["detail"] == "only here: it is a standby"
    (tmp_path / "state").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with pytest.raises(RefusedError, match="not shown"):
        reveal(database, queue, key, rights=Rights.OPERATOR)


async def test_the_age_of_a_message_goes_on_between_two_readings() -> None:
    async with opened() as (console, screen, _):
        screen.show_result(ReadMessage(FAILED))
        console.clock.now += 42
        screen.draw()
        assert "error for 43.0 s" in text_of(screen, "head")
        screen.show_error(ConnectionFailedError("Could not read it.", why="it is away"))
        console.clock.now += 60
        screen.draw()
        assert "error for 1 min 43 s" in text_of(screen, "head")
        await console.press("space")
        console.clock.now += 60
        screen.draw()
        assert "error for 1 min 43 s" in text_of(screen, "head"), "frozen"
