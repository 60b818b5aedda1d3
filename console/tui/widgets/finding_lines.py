"""A finding in words: what is wrong, what proves it, why, what comes of it, what mends it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import ClassVar

from rich.table import Table
from rich.text import Text
from textual.widgets import Static

from console.tui.findings import FindingView
from console.tui.health import Level
from console.tui.text import plain, whole_seconds
from console.tui.widgets.tones import TONE_CLASSES, tone

TONES = {Level.OK: "quiet", Level.WARNING: "warning", Level.CRITICAL: "critical"}
_MOST = 20
"""Lines of one piece of evidence; the doctor keeps it short himself."""


class FindingLines(Static):
    """As many lines as it takes; it scrolls with what is around it."""

    COMPONENT_CLASSES: ClassVar[set[str]] = TONE_CLASSES

    def draw(
        self,
        view: FindingView,
        moment: Callable[[datetime], str],
        *,
        words: bool = True,
        evidence: bool = True,
        allowed: bool = True,
    ) -> None:
        """Say it; `moment` writes a time as the console does now.

        `allowed`: whether its repair may be done here; else that is grey.
        """
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True, style=tone(self, "quiet"))
        table.add_column(overflow="fold")
        rows = list(self._words(view, moment, allowed=allowed)) if words else []
        rows += self._evidence(view) if evidence else []
        for head, text in rows:
            table.add_row(Text(head), text)
        self.update(table)

    def _words(
        self, view: FindingView, moment: Callable[[datetime], str], *, allowed: bool
    ) -> Iterator[tuple[str, Text]]:
        level = view.level.word if view.level else "note"
        yield level, Text(view.summary, tone(self, TONES[view.level]))
        yield "since", Text(since_words(view, moment))
        finding = view.finding
        if finding is None:
            return
        for head, words in (("cause", finding.cause), ("consequence", finding.consequence)):
            if words:
                yield head, Text(plain(words))
        if finding.repair is not None:
            needs = f"  (needs {finding.repair.rights.word})"
            grey = tone(self, "" if allowed else "quiet")
            yield "repair", Text(plain(finding.repair.summary) + needs, grey)

    def _evidence(self, view: FindingView) -> Iterator[tuple[str, Text]]:
        head = "evidence"
        evidence = {} if view.finding is None else view.finding.evidence
        for name, value in evidence.items():
            for line in evidence_lines(name, value):
                yield head, Text(line, tone(self, "quiet"))
                head = ""


def since_words(view: FindingView, moment: Callable[[datetime], str]) -> str:
    """`2026-03-29 01:58:11 UTC, for 15 m 56 s`."""
    told = "" if view.since_seconds is None else f"for {whole_seconds(view.since_seconds)}"
    if view.longer:
        told += " or longer: it was there when this console first looked"
    if view.finding is not None and view.finding.since is not None:
        return f"{moment(view.finding.since)}, {told}"
    return told or "not known"


def evidence_lines(name: str, value: object) -> list[str]:
    """One line a value; several for a list of things. Safe to show."""
    if isinstance(value, Mapping):
        return [plain(f"{name}: {_flat(value)}")]
    if isinstance(value, Sequence) and not isinstance(value, str):
        if any(isinstance(one, Mapping) for one in value):
            lines = [plain(f"{name}: {_flat(one)}") for one in value[:_MOST]]
            left = len(value) - len(lines)
            return [*lines, f"and {left} more"] if left else lines
        return [plain(f"{name}: " + (", ".join(map(_flat, value)) or "none"))]
    return [plain(line) for line in f"{name}: {_flat(value)}".splitlines()[:_MOST]]


def _flat(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "?", True: "yes", False: "no"}[value]
    if isinstance(value, (int, float)):
        return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"
    if isinstance(value, Mapping):
        return "  ".join(f"{name} {_flat(one)}" for name, one in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(map(_flat, value)) or "none"
    return str(value)
