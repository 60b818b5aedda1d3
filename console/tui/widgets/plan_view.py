"""A plan as it is to be read before it is confirmed: words, the first messages, the SQL."""

from collections.abc import Sequence
from typing import ClassVar

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from textual.widgets import Static

from console import formats
from console.actions.work import Planned
from console.monitor.message import Masks, Message, masked
from console.tui.text import first_line, plain, shorten
from console.tui.widgets.tones import TONE_CLASSES, tone


class PlanView(Static):
    """Everything in it is data, never markup. Payloads are not in it."""

    COMPONENT_CLASSES: ClassVar[set[str]] = TONE_CLASSES
    said = ""
    """What is shown but the SQL, without its colours."""

    def draw(self, planned: Planned, masks: Masks) -> None:
        """Show a plan."""
        text = Text()
        for at, line in enumerate(planned.lines):
            if planned.sample and line.startswith("  the first: "):
                continue  # they stand below, with more of each
            text.append(f"{plain(line)}\n", tone(self, self._tone(line, first=at == 0)))
        self.said = text.plain
        parts: list[RenderableType] = [text]
        if planned.sample:
            parts += [self._sample(planned.sample, masks), Text()]
        if planned.sql:
            parts += [
                Text("The SQL of each batch:", tone(self, "quiet")),
                Text(_shown(planned.sql)),
            ]
        self.update(Group(*parts))

    @staticmethod
    def _tone(line: str, *, first: bool) -> str:
        words = line.strip()
        if words.startswith("REFUSED"):
            return "critical"
        if words.startswith("PRODUCTION"):
            return "production"
        if words.startswith(("left alone", "alive:", "waits for", "left out")):
            return "warning"
        return "strong" if first else ""

    def _sample(self, sample: Sequence[Message], masks: Masks) -> Table:
        table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False)
        for title in ("id", "state", "age", "tries", "error, owner"):
            table.add_column(Text(title, tone(self, "quiet")), no_wrap=True)
        # The last column takes what the others leave: rich would take it from all of them.
        most = self.app.size.width - 6 - _OTHERS
        names = [shorten(_name(one), max(8, most - 2 - _LEAST_ERROR)) for one in sample]
        room = max(_LEAST_ERROR, most - 2 - max(map(cell_len, names)))
        for one, name in zip(sample, names, strict=True):
            said = one.error or one.claimed_by or ""
            table.add_row(
                Text(name),
                Text(one.state),
                Text(formats.UNKNOWN if one.age_seconds is None else _age(one.age_seconds)),
                Text(formats.NOT_APPLICABLE if one.attempts is None else f"{one.attempts:,}"),
                Text(shorten(first_line(masked(said, masks)), room)),
            )
        return table


_OTHERS = 11 + 12 + 7
"""Cells that state, age and tries take."""
_LEAST_ERROR = 14


def _name(one: Message) -> str:
    return plain(one.id or one.key or formats.UNKNOWN)


def _age(seconds: float) -> str:
    return formats.duration(max(0.0, seconds))


def _shown(sql: str) -> str:
    """Line by line: a tab or an escape in a name does nothing to the terminal."""
    return "\n".join(plain(line.expandtabs(4)) for line in sql.strip().splitlines())
