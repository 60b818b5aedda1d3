"""One run of the pipeline, whole: what it was to do, how it ended, its result."""

import json
from typing import ClassVar

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Static

from console import formats
from console.pipeline import launch
from console.pipeline.runs import Outcome, Run
from console.tui.desk import Desk
from console.tui.dialogs.dialog import Dialog
from console.tui.text import plain
from console.tui.widgets.runs_table import size

_AGAIN = {
    Outcome.SILENT: "It was killed, or its machine was. The same command goes on where it was.",
    Outcome.STOPPED: "It was asked to end, and did. The same command goes on where it was.",
    Outcome.ELSEWHERE: "It began on another machine: only that one can tell whether it runs.",
}
_SAID_LINES = 20


class RunDialog(Dialog[None]):
    """As it was when it was opened; nothing in it changes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter", "dismiss", "close", show=False, tooltip="close"),
        Binding("y", "copy", "copy", show=False, tooltip="copy the text"),
        Binding("down,j", "scroll(1)", "down", show=False),
        Binding("up,k", "scroll(-1)", "up", show=False),
        Binding("pagedown", "scroll(10)", "page down", show=False),
        Binding("pageup", "scroll(-10)", "page up", show=False),
    ]

    def __init__(self, desk: Desk, run: Run, said: str = "") -> None:
        """`said`: the last of what it has written to its stderr."""
        super().__init__()
        self._desk = desk
        # Not `run`: that is Textual's.
        self.shown = run
        self._said = said

    def compose(self) -> ComposeResult:
        """One panel that scrolls where the terminal is small."""
        with VerticalScroll(id="run-entry", classes="dialog") as panel:
            panel.border_title = f"pipeline {plain(self.shown.verb)}"
            panel.border_subtitle = "y copies · Escape closes"
            table = Table.grid(padding=(0, 2))
            table.add_column(no_wrap=True, style="bold")
            table.add_column(overflow="fold")
            for name, words in facts(self._desk, self.shown).items():
                table.add_row(Text(name), Text(words))
            yield Static(table)
            for part in self._parts():
                yield Static(Text(f"\n{part}", overflow="fold"))

    def _parts(self) -> list[str]:
        run = self.shown
        said = [] if run.lines or not self._said else self._said.splitlines()[-_SAID_LINES:]
        result = "" if run.result is None else json.dumps(run.result, indent=2, ensure_ascii=False)
        again = _AGAIN.get(run.outcome, "")
        if run.verb == "verify":  # it keeps nothing half-way
            again = again.replace("goes on where it was", "does it anew")
        parts = ["\n".join(run.lines), "\n".join(said), again, result]
        return ["\n".join(map(plain, part.splitlines())) for part in parts if part]

    def action_copy(self) -> None:
        """Copy what it says."""
        pairs = facts(self._desk, self.shown).items()
        text = "\n".join([*(f"{name}: {words}" for name, words in pairs), *self._parts()])
        self.app.copy_to_clipboard(text)
        self.notify("Copied.")

    def action_scroll(self, lines: int) -> None:
        """Some lines down or up."""
        self.query_one("#run-entry").scroll_relative(y=lines, animate=False, immediate=True)


def facts(desk: Desk, run: Run) -> dict[str, str]:
    """What is known of it beside its result, safe to show."""
    now = desk.clock.utc()
    seconds, speed = run.seconds(now), run.rows_per_second(now)
    ended = "" if run.ended_at is None else desk.moment(run.ended_at)
    last = "" if run.told_at is None else f"{run.told}   ({desk.moment(run.told_at)})"
    told = {
        "outcome": run.outcome.value + ("" if run.status is None else f" (exit {run.status})"),
        "what": run.error.get("what", ""),
        "why": run.error.get("why", ""),
        "what next": run.error.get("next_step", ""),
        "queue": run.queue,
        "connection": run.connection,
        "lake": run.lake,
        "began": desk.moment(run.began_at),
        "ended": ended,
        "took": "" if seconds is None else formats.duration(seconds),
        "rows": run.moved,
        "size": size(run.bytes),
        "rows/s": "" if speed is None else f"{speed:,.0f}",
        "last word": last,
        "by": f"{run.user}@{run.host}, process {run.pid}",
        "command": launch.line(run.words),
    }
    return {name: plain(" ".join(words.splitlines())) for name, words in told.items() if words}
