"""Commands after `:`, and the palette of Ctrl-P."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.command import Hit, Hits
from textual.widgets import Input

from console.errors import UsageError
from console.features.presets import screens as presets_screens
from console.features.presets.screens.adopt import AdoptScreen
from console.filters import words_of
from console.monitor.sampler import Reading
from console.monitor.snapshot import QueueSnapshot
from console.tui import commands
from console.tui.command import CommandContext, queue_named, quoted
from console.tui.context import Context
from console.tui.dialogs.command_line import (
    CommandLineDialog,
    ConsoleCommands,
    completions,
    entries,
)
from console.tui.store import Store
from tests.tui.feeds import FakeClock, nine_queues, queue
from tests.tui.opened import alone, conn, opened

KEY = ("prod", "public", "mail")
ORDERS = ("prod", "public", "orders")


class CallRecorder:
    """A navigator that records its calls, and whatever else commands call."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def can(self, *_: str) -> bool:
        """It is no recording."""
        return True

    def __getattr__(self, name: str) -> Callable[..., None]:
        def go(*words: Any, **options: Any) -> None:
            self.calls.append((name, *words, options) if options else (name, *words))

        return go


def command_context(
    key: Any = None, queues: Sequence[QueueSnapshot] = ()
) -> tuple[CommandContext, CallRecorder]:
    """The context of a command in a console with these queues, and its navigator."""
    store = Store({"prod": 1.0}, 0.0)
    store.add_reading(
        "prod", Reading("prod", tuple(queues or nine_queues()), latency_seconds=0.004), 0.0
    )
    navigator: Any = CallRecorder()
    context = Context(store, FakeClock().clock, navigator, connections={"prod": conn()})
    return CommandContext(context, key, ("dark", "light")), navigator


def test_each_command_opens_its_screen() -> None:
    cases: list[tuple[str, tuple[Any, ...]]] = [
        ("q orders state=error", ("open_messages", ORDERS, ["state=error"])),
        (":queue mail errors", ("open_queue", KEY, "errors")),
        ("errors", ("open_queue", KEY, "errors")),
        ("queue prod/public.mail", ("open_queue", KEY, "")),
        (
            "release mail --filter older=1h state=claimed --unknown --batch 50",
            (
                "open_action",
                KEY,
                "release",
                ["older=1h", "state=claimed"],
                {"unknown": "yes", "batch": "50"},
            ),
        ),
        ("resize orders 20000", ("open_action", ORDERS, "resize", [], {"size": "20000"})),
        ('requeue error~"no route"', ("open_action", KEY, "requeue", ["error~no route"])),
        (
            'note "deployed 1.4"',
            ("open_action", KEY, "note", {"text": "deployed 1.4", "all": "yes"}),
        ),
        ('note "deployed 1.4" orders', ("open_action", ORDERS, "note", {"text": "deployed 1.4"})),
        ("note mail", ("open_action", KEY, "note")),
        ("history mail", ("open_queue", KEY, "history")),
        ("queue mail history", ("open_queue", KEY, "history")),
        ("waits prod", ("open_waits", "prod")),
        ("audit", ("open_audit",)),
        ("audit mail", ("open_audit", {"key": KEY})),
        ("install", ("open_install", "prod")),
        (
            "install prod ring late --option size=20 --option in_hand=on",
            (
                *("open_install", "prod"),
                {"design": "ring", "name": "late", "option": "size=20 in_hand=on"},
            ),
        ),
        ("smoke mail", ("open_smoke", KEY)),
        ("smoke mail --live", ("open_smoke", KEY, {"live": "yes"})),
        ("connections", ("open_connections",)),
        ("doctor mail", ("examine", KEY)),
    ]
    for line, call in cases:
        context, navigator = command_context(KEY)
        commands.run(context, line)
        assert navigator.calls == [call], line


def test_adopt_opens_its_form_with_what_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[tuple[Any, ...]] = []
    monkeypatch.setattr(
        presets_screens, "open_adopt", lambda _, *where, **options: opened.append((*where, options))
    )
    for line in ("adopt prod", "adopt jobs --design claim --map id=job_id"):
        commands.run(command_context(KEY)[0], line)
    given = {"name": "jobs", "design": "claim", "map": "id=job_id"}
    assert opened == [("prod", {}), ("prod", given)]


def test_a_wrong_command_is_explained() -> None:
    context, navigator = command_context()
    for line, words in (
        ("relase mail", "Did you mean: release"),
        ("queue mial", "Did you mean: mail"),
        ("queue", "Which queue?"),
        ("queue mail nothing", "Tabs: findings"),
        ("release mail --forc", "--force"),
        ("release mail --batch", "requires an argument"),
        ("release mail --batch many", "batch"),
        ("q mail state", "cannot be read"),
        ("waits nowhere", "There are: prod"),
        ("bench nowhere", "There are: prod"),
        ("install nowhere", "no design 'nowhere'"),
        ("adopt jobs --mep id=a", "--map"),
        ("bench --rounds many", "--rounds': It must be a whole number"),
        ("theme pink", "dark, light"),
        ("pipeline", "archive, replay, verify, expire, erase, rollup, compact, lake"),
        ("pipeline archvie mail", "There is no job"),
        ("quit now", "not understood here"),
        ('q "mail', "quotation"),
    ):
        with pytest.raises(UsageError) as caught:
            commands.run(context, line)
        assert words in str(caught.value), line
    assert not navigator.calls


def test_queues_of_the_same_name_need_their_schema() -> None:
    context, _ = command_context(
        queues=(queue("mail"), queue("mail", schema="sales"), queue("a b"))
    )
    with pytest.raises(UsageError) as caught:
        queue_named(context, "mail")
    assert "sales.mail" in caught.value.next_step
    assert queue_named(context, "sales.mail") == ("prod", "sales", "mail")
    offered = completions(context, "queue ")
    assert offered == ["queue public.mail", "queue sales.mail", 'queue "a b"']


def test_a_command_line_is_completed() -> None:
    expected = {
        "rel": ["relay", "release"],
        "release ma": ["release mail"],
        "queue mail st": ["queue mail stuck"],
        "theme l": ["theme light"],
        "pipeline ro": ["pipeline rollup"],
        "bench p": ["bench prod"],
        "bench prod --held": ["bench prod --held-xmin"],
        "pipeline archive ma": ["pipeline archive mail"],
        "release mail --unk": ["release mail --unknown"],
        "q mail state=e": ["q mail state=error"],
        "pipeline archive mail --ol": ["pipeline archive mail --older"],
        "complete mail state": [],
        "doctor mail --": [],
        "waits ": ["waits prod"],
        "nothing ": [],
    }
    assert {line: completions(command_context()[0], line) for line in expected} == expected


async def test_the_command_line_completes_shows_errors_and_has_a_history() -> None:
    async with alone(connections=[conn()]) as console:
        console.feeds[0].give(*nine_queues())
        await console.pilot.pause()
        opened_waits: list[Any] = []
        console.app.open_waits = opened_waits.append  # type: ignore[assignment, method-assign]
        await console.press("colon", "r", "e", "l", "tab", "tab")
        assert console.is_at(CommandLineDialog)
        line = console.app.screen.query_one(Input)
        assert line.value == "release"
        line.value = "release mial"
        await console.press("enter")
        await console.pilot.pause()
        assert "Did you mean: mail" in console.picture
        line = console.app.screen.query_one(Input)
        assert (line.value, line.cursor_position) == ("release mial", 12), "to be corrected"
        await console.press("x")
        assert "Did you mean: mail" not in console.picture
        line.value = "waits prod"
        await console.press("enter")
        assert opened_waits == ["prod"]
        await console.press("colon", "up", "up")
        assert console.app.screen.query_one(Input).value == "release mial"
        await console.press("escape")
        assert not console.is_at(CommandLineDialog)
        commands.run(console.app.command_context(console.app.screen), "quit")
        await console.pilot.pause()
        assert not console.app.is_running


def test_the_palette_has_every_verb_of_the_queue_under_the_cursor() -> None:
    context, navigator = command_context(KEY)
    names = [name for name, _, _ in entries(context)]
    assert {"release mail", "requeue mail", "smoke mail", "queue prod/public.mail"} <= {*names}
    assert {f"pipeline {one}" for one in ("rollup", "compact", "lake")} <= {*names}
    assert "resize mail" not in names
    assert len(names) == len(set(names))
    for _, _, line in entries(context):
        commands.run(context, line)
    assert len(navigator.calls) == len(names)


@given(st.text(min_size=1))
def test_a_quoted_name_is_read_back_as_it_was(name: str) -> None:
    assert words_of(quoted(name)) == [name]


async def test_a_closed_palette_does_not_search_for_the_last_input(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Under load the last key arrives after it has closed, and the hits after its list has gone."""
    closed = asyncio.Event()

    async def search(_: ConsoleCommands, query: str) -> Hits:
        await closed.wait()
        nothing: tuple[Hit, ...] = ()
        for hit in nothing:
            yield hit

    async def shutdown(_: ConsoleCommands) -> None:
        closed.set()
        await palette.workers.wait_for_complete()

    monkeypatch.setattr(ConsoleCommands, "search", search)
    monkeypatch.setattr(ConsoleCommands, "shutdown", shutdown)
    async with opened() as console:
        await console.press("ctrl+p")
        palette = console.app.screen
        await palette.run_action("escape")
        assert palette.post_message(Input.Changed(palette.query_one(Input), "zzz"))
        await console.pilot.pause()
    assert closed.is_set()


async def test_a_second_enter_does_not_close_the_screen_that_the_first_opened() -> None:
    async with alone(connections=[conn()]) as console:
        await console.press("colon", *"adopt")
        dialog = console.app.screen
        line = dialog.query_one(Input)
        for _ in range(2):
            dialog.post_message(Input.Submitted(line, line.value))
        await console.until(lambda: "Adopt a table" in console.picture)
        assert console.is_at(AdoptScreen)
