"""All that is known of one queue's figures: each that its design has, its options, its limits."""

from collections.abc import Iterator

from rich.cells import cell_len
from rich.text import Text
from textual.geometry import Size

from console import formats
from console.catalog import Queue
from console.monitor import QueueSnapshot
from console.monitor.limits import Exceeded, Level, Limits, N, Thresholds, judge
from console.tui.board import QueueView
from console.tui.text import figure, plain, whole_seconds
from console.tui.widgets.tones import tone
from console.tui.widgets.words import Words

_STEP = 16
"""Figures begin at multiples of it, so that they stay where they are while they change."""
_MANY_LINES = 30
"""On a screen of fewer lines options and limits share one."""
_WIDE = 100
_TONES = {Level.OK: "", Level.WARNING: "warning", Level.CRITICAL: "critical"}
_FIGURES = (
    ("ready", "ready"),
    ("age_seconds", "age"),
    ("push_per_second", "push/s"),
    ("pop_per_second", "pop/s"),
    ("gap", "gap"),
    ("scheduled", "scheduled"),
    ("claimed", "claimed"),
    ("stuck", "stuck"),
    ("errors", "errors"),
    ("done", "done"),
)
_JUDGED = {"depth": "ready", "age": "age_seconds", "gap_share": "gap", "errors": "errors"}
"""A limit -> the figure that it is of."""

Piece = tuple[str, str, str]
"""A name, a figure in words, its tone."""


class FiguresPanel(Words):
    """A verdict, the figures on as many lines as they need, limits and options."""

    _at_size = Size(0, 0)
    _most = 0
    """So many lines it has had at this size."""

    def draw(self, view: QueueView, gone: str, queue: Queue | None, thresholds: Thresholds) -> None:
        """Say it. `gone`: in words, where the queue is no longer there; `queue`: once it is known,
        with its options."""
        size = self.app.size
        if size != self._at_size:
            self._at_size, self._most = size, 0
        width = max(20, size.width - 2)
        lines = [self._verdict(view, gone), *self._figures(view, thresholds, width)]
        # Once it has taken a line more it keeps that: what is below shall not jump.
        self._most = max(self._most, len(lines) + (2 if size.height >= _MANY_LINES else 1))
        rest = [
            self._options(queue, view.snapshot.capacity),
            self._limits(view.snapshot, thresholds),
        ]
        if self._most - len(lines) < len(rest):
            rest = [Text("   ", no_wrap=True).join(reversed(rest))]
        lines += [Text() for _ in range(self._most - len(lines) - len(rest))] + rest
        for line in lines:
            line.rstrip()
            line.truncate(width, overflow="ellipsis")
        self.say(Text("\n").join(lines))

    def _verdict(self, view: QueueView, gone: str) -> Text:
        snapshot = view.snapshot
        line = Text(no_wrap=True)
        if view.level > Level.OK and not gone:
            line.append(f"{view.level.mark} ", tone(self, _TONES[view.level]))
        line.append(plain(f"{snapshot.schema}.{snapshot.queue}"), tone(self, "strong"))
        line.append(f"  {snapshot.design}", tone(self, "quiet"))
        if view.place:
            line.append(f"  on {view.place}", tone(self, "quiet"))
        if gone:
            line.append(f"  {gone}", tone(self, "critical"))
            return line
        if view.stale_seconds is not None:
            why = "cannot be reached" if view.unreachable else "no answer"
            since = whole_seconds(view.stale_seconds)
            line.append(f"  {why}, figures are {since} old", tone(self, "critical"))
        for acting in snapshot.acting:
            line.append(f"  ▶ {plain(acting.words)}", tone(self, "strong"))
        line.append("  ")
        line.append_text(self._findings(view))
        return line

    def _findings(self, view: QueueView) -> Text:
        """How many there are, and the gravest in its own words."""
        grave = [one for one in view.findings if one.level > Level.OK]
        if grave:
            more = f"{len(grave)} findings: " if len(grave) > 1 else ""
            return Text(more + grave[0].summary, tone(self, _TONES[grave[0].level]))
        words = "nothing wrong in the figures"
        if view.diagnosis is not None:
            clear = (
                "all clear" if view.diagnosis.healthy else f"the doctor: {view.diagnosis.verdict}"
            )
            words = clear
        if notes := len(view.findings):
            words += f", {formats.numbered(notes, 'note')}"
        healthy = view.diagnosis is not None and view.diagnosis.healthy
        return Text(words, tone(self, "good" if healthy else "quiet"))

    def _figures(self, view: QueueView, thresholds: Thresholds, width: int) -> list[Text]:
        lines = [Text(no_wrap=True)]
        stale = view.stale_seconds is not None
        for name, words, mood in pieces(view.snapshot, thresholds, width):
            line = lines[-1]
            needed = cell_len(name) + 1 + cell_len(words)
            if line and line.cell_len + needed > width:
                lines.append(line := Text(no_wrap=True))
            line.append(f"{name} ", tone(self, "quiet"))
            line.append(words, tone(self, "stale" if stale else mood))
            # At least two blanks, up to where the next one may begin.
            line.append(" " * (2 + -(line.cell_len + 2) % _STEP))
        return lines

    def _options(self, queue: Queue | None, capacity: int | None) -> Text:
        line = Text(no_wrap=True)
        if queue is not None and queue.options:
            options = {**queue.options}
            if "size" in options and capacity is not None:
                options["size"] = f"{capacity}"  # the catalog has that of the installation
            told = " ".join(f"{name}={value}" for name, value in sorted(options.items()))
            line.append(plain(f"options {told}"), tone(self, "quiet"))
        return line

    def _limits(self, snapshot: QueueSnapshot, thresholds: Thresholds) -> Text:
        words = "; ".join(limit_words(snapshot, thresholds))
        return Text(f"limits {words}" if words else "no limits", tone(self, "quiet"), no_wrap=True)


def pieces(snapshot: QueueSnapshot, thresholds: Thresholds, width: int) -> Iterator[Piece]:
    """Every figure that the design has, in words; a narrow screen is spared what may be."""
    levels = {_JUDGED[one.figure]: one.level for one in judge(snapshot, thresholds)}
    if snapshot.stuck:
        levels["stuck"] = Level.CRITICAL
    for name, title in _FIGURES:
        words = figure(snapshot, name)
        if words == formats.NOT_APPLICABLE:
            continue
        if name == "gap" and snapshot.capacity is not None:
            words = f"{words} of {snapshot.capacity:,}"
        why = " (too slow to read)" if name in snapshot.slow else ""
        yield title, words + why, _TONES[levels.get(name, Level.OK)]
    if snapshot.capacity is not None:
        yield from _filling(snapshot, width)
    if snapshot.holders is not None or "holders" in snapshot.unknown:
        yield "writers", _holders(snapshot), ""


def _filling(snapshot: QueueSnapshot, width: int) -> Iterator[Piece]:
    seconds = snapshot.full_in_seconds
    if seconds is None:
        rates = (snapshot.push_per_second, snapshot.pop_per_second)
        known = snapshot.gap is not None and None not in rates
        yield "full in", "never" if known else formats.UNKNOWN, ""
        return
    words = formats.ESTIMATE + formats.duration(seconds) if seconds else "full"
    soonest, latest = snapshot.full_in_range_seconds
    if seconds and soonest is not None and snapshot.filling_per_second is not None:
        until = "never" if latest is None else formats.duration(latest)
        words += f" ({formats.duration(soonest)} to {until})"
    yield "full in", words, "critical" if not seconds else "warning" if seconds < 600 else ""
    buys = snapshot.resize_buys_seconds(2 * (snapshot.capacity or 0))
    if buys is not None and width >= _WIDE:
        yield "twice the size buys", formats.duration(buys), ""


def _holders(snapshot: QueueSnapshot) -> str:
    if snapshot.holders is None:
        return formats.UNKNOWN
    if snapshot.held_seconds is None:
        return f"{snapshot.holders:,}"
    return f"{snapshot.holders:,}, the oldest {formats.duration(max(0.0, snapshot.held_seconds))}"


def limit_words(snapshot: QueueSnapshot, thresholds: Thresholds) -> Iterator[str]:
    """Each limit that the queue can reach: `90 % full, critical 100 %`."""
    if snapshot.stuck is not None or "stuck" in snapshot.unknown:
        yield f"stuck after {formats.duration(thresholds.stuck_after_seconds)}"
    yield from _limit("depth", "{} ready", thresholds.depth)
    yield from _limit("age", "oldest {}", thresholds.age_seconds)
    if snapshot.capacity is not None:
        yield from _limit("gap_share", "{} full", thresholds.gap_share)
    if snapshot.errors is not None or "errors" in snapshot.unknown:
        yield from _limit("errors", "{} in error", thresholds.errors)


def _limit(name: str, words: str, limits: Limits[N]) -> Iterator[str]:
    told = {
        level: Exceeded(name, limit, limit, level).limit_words
        for level, limit in (
            (Level.WARNING, limits.warning),
            (Level.CRITICAL, limits.critical),
        )
        if limit is not None
    }
    if Level.WARNING in told:
        critical = told.get(Level.CRITICAL)
        yield words.format(told[Level.WARNING]) + (f" (critical {critical})" if critical else "")
    elif told:
        yield words.format(told[Level.CRITICAL]) + " is critical"
