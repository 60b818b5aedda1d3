"""A queue's figures as text: all on its screen, those without a column on the overview."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rich.cells import cell_len
from rich.text import Text
from textual.geometry import Size

from console import formats
from console.catalog import Queue
from console.figures import (
    COLUMNS,
    ERROR_LIMIT,
    ERROR_SHARE,
    FULL,
    GAP,
    LATENCY_KINDS,
    LIMITS,
    STUCK,
    Limit,
)
from console.monitor.latency import Percentiles
from console.monitor.limits import (
    NO_LIMITS,
    Limits,
    Severity,
    Thresholds,
    judge,
    slowest_subscriber,
)
from console.monitor.snapshot import QueueSnapshot
from console.tui.findings import full_soon
from console.tui.text import (
    SEVERITY_STYLES,
    TextView,
    first_line,
    plain,
    show_lines,
    style_of,
    whole_seconds,
)
from console.tui.views import Link, QueueView
from console.tui.widgets.queue_columns import LONGEST_SUBSCRIBER, slowest_first
from console.tui.widgets.queue_groups import Group
from console.views.doctor import FindingView

_INDENT = "  "
_STEP = 16
"""Figures start at multiples of it, so that they do not move when they change."""
_TALL_PANEL = 30
"""On a smaller screen options and limits share a line."""
_WIDE = 100

Piece = tuple[str, str, str]
"""(name, figure as text, style name)."""


class FiguresPanel(TextView):
    """A verdict, the figures on as many lines as they need, limits and options."""

    _at_size = Size(0, 0)
    _most = 0
    """The most lines so far at this size."""

    def draw(self, view: QueueView, gone: str, queue: Queue | None, thresholds: Thresholds) -> None:
        """`gone`: a text, if the queue no longer exists; `queue`: for its options, once known."""
        size = self.app.size
        if size != self._at_size:
            self._at_size, self._most = size, 0
        width = max(20, size.width - 2)
        lines = [self._verdict(view, gone), *self._figures(view, thresholds, width)]
        stale, most = view.stale_seconds is not None, max(2, size.height // 8)
        lines += subscriber_lines(self, view.snapshot, most, stale=stale)
        # It never shrinks, so that what is below does not jump.
        self._most = max(self._most, len(lines) + (2 if size.height >= _TALL_PANEL else 1))
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
        self.set_text(Text("\n").join(lines))

    def _verdict(self, view: QueueView, gone: str) -> Text:
        line = Text(no_wrap=True)
        if view.level > Severity.NOTE and not gone:
            line.append(f"{view.level.mark} ", style_of(self, SEVERITY_STYLES.get(view.level, "")))
        _append_name(line, self, view)
        if gone:
            return line.append(f"  {gone}", style_of(self, "critical"))
        _append_state(line, self, view, "▶ ")
        line.append("  ")
        line.append_text(self._findings(view))
        return line

    def _findings(self, view: QueueView) -> Text:
        """Their number, and the text of the most severe."""
        problems = [finding_view for finding_view in view.findings if finding_view.is_problem]
        if problems:
            more = f"{len(problems)} findings: " if len(problems) > 1 else ""
            return Text(
                more + problems[0].text, style_of(self, SEVERITY_STYLES.get(problems[0].level, ""))
            )
        healthy = view.diagnosis is not None and view.diagnosis.healthy
        text = "nothing wrong in the figures"
        if view.diagnosis is not None:
            text = ("" if healthy else "the doctor: ") + view.diagnosis.verdict
        if notes := len(view.findings):
            noted = formats.numbered(notes, "note")
            text = noted if healthy else f"{text}, {noted}"
        if soon := full_soon(view.full_in_seconds):
            return Text(soon, style_of(self, "warning"))
        return Text(text, style_of(self, "good" if healthy else "quiet"))

    def _figures(self, view: QueueView, thresholds: Thresholds, width: int) -> list[Text]:
        lines = [Text(no_wrap=True)]
        stale = view.stale_seconds is not None
        for name, words, style in pieces(view.snapshot, thresholds, width):
            line = lines[-1]
            needed = cell_len(name) + 1 + cell_len(words)
            if line and line.cell_len + needed > width:
                lines.append(line := Text(no_wrap=True))
            line.append(f"{name} ", style_of(self, "quiet"))
            line.append(words, style_of(self, "stale" if stale else style))
            # At least two blanks, up to the next multiple.
            line.append(" " * (2 + -(line.cell_len + 2) % _STEP))
        return lines

    def _options(self, queue: Queue | None, capacity: int | None) -> Text:
        line = Text(no_wrap=True)
        if queue is not None and queue.options:
            options = {**queue.options}
            if "size" in options and capacity is not None:
                options["size"] = f"{capacity}"  # the catalog has the size at installation
            text = " ".join(f"{name}={value}" for name, value in sorted(options.items()))
            line.append(plain(f"options {text}"), style_of(self, "quiet"))
        return line

    def _limits(self, snapshot: QueueSnapshot, thresholds: Thresholds) -> Text:
        words = "; ".join(limit_texts(snapshot, thresholds))
        return Text(
            f"limits {words}" if words else "no limits", style_of(self, "quiet"), no_wrap=True
        )


def subscriber_lines(
    on: TextView, snapshot: QueueSnapshot, most: int, *, stale: bool
) -> list[Text]:
    """A line per subscriber, the slowest first; at most `most` lines."""
    if "subscribers" in snapshot.unknown:
        return [Text(f"{_INDENT}subscribers {formats.UNKNOWN}", style_of(on, "quiet"))]
    subscribers = slowest_first(snapshot)
    shown = subscribers if len(subscribers) <= most else subscribers[: most - 1]
    figures = [list(subscriber_snapshot.figures) for subscriber_snapshot in subscribers]
    if all(subscriber_snapshot.parked == 0 for subscriber_snapshot in subscribers):
        figures = [[piece for piece in row if piece[0] != "parked"] for row in figures]
    widths = [max(len(words) for _, words in column) for column in zip(*figures, strict=True)]
    name_width = min(
        LONGEST_SUBSCRIBER,
        max(
            (len(subscriber_snapshot.subscriber) for subscriber_snapshot in subscribers), default=0
        ),
    )
    lines = []
    for one, row in zip(shown, figures, strict=False):
        line = Text(_INDENT, no_wrap=True)
        name = formats.plain(one.subscriber)[:LONGEST_SUBSCRIBER].ljust(name_width)
        line.append(name, style_of(on, "strong" if one is subscribers[0] else ""))
        for (title, words), width in zip(row, widths, strict=True):
            line.append(f"  {title} ", style_of(on, "quiet"))
            line.append(words.rjust(width), style_of(on, "stale" if stale else ""))
        lines.append(line)
    if len(shown) < len(subscribers):
        more = formats.numbered(len(subscribers) - len(shown), "subscriber")
        lines.append(Text(f"{_INDENT}{more} less far behind", style_of(on, "quiet")))
    return lines


def _append_name(line: Text, on: TextView, view: QueueView) -> None:
    line.append(plain(f"{view.snapshot.schema}.{view.snapshot.queue}"), style_of(on, "strong"))
    line.append(f"  {view.snapshot.design}", style_of(on, "quiet"))
    if view.connection_label:
        line.append(f"  on {view.connection_label}", style_of(on, "quiet"))


def _append_state(line: Text, on: TextView, view: QueueView, mark: str = "") -> None:
    """The age of its figures, its decisions, the actions running on it."""
    if view.stale_seconds is not None:
        since = whole_seconds(view.stale_seconds)
        line.append(f"  {view.why_stale}, figures are {since} old", style_of(on, "critical"))
    line.append(decided(view.snapshot, on.app.size.width), style_of(on, "warning"))
    for acting in view.snapshot.acting:
        line.append(f"  {mark}{plain(acting.words)}", style_of(on, "strong"))


def decided(snapshot: QueueSnapshot, width: int) -> str:
    """The operators' decisions, each after two blanks; with reasons if there is room."""
    complete = [decision.shown for decision in snapshot.decisions]
    return "".join(f"  {plain(mark)}" for mark in (complete if width >= _WIDE else snapshot.marks))


def pieces(snapshot: QueueSnapshot, thresholds: Thresholds, width: int) -> Iterator[Piece]:
    """All figures of the design; on a narrow screen without the optional ones."""
    levels = {
        LIMITS[exceeded.figure].figure: exceeded.level for exceeded in judge(snapshot, thresholds)
    }
    if snapshot.stuck:
        levels[STUCK] = Severity.CRITICAL
    for figure in COLUMNS:
        words = snapshot.text_of(figure.name)
        if words == formats.NOT_APPLICABLE:
            continue
        if figure is GAP and snapshot.capacity is not None:
            words = f"{words} of {snapshot.capacity:,}"
        why = " (too slow to read)" if figure.name in snapshot.slow else ""
        style = SEVERITY_STYLES.get(levels.get(figure, Severity.OK), "")
        yield figure.title, words + why, style
    if snapshot.capacity is not None:
        yield from _filling(snapshot, width)
    if snapshot.holders is not None or "holders" in snapshot.unknown:
        yield "writers", _holders(snapshot), ""
    for kind, words in () if snapshot.latency is None else snapshot.latency.labels_and_texts:
        yield kind, words, ""


def _filling(snapshot: QueueSnapshot, width: int) -> Iterator[Piece]:
    seconds = snapshot.full_in_seconds
    usual = [] if snapshot.filling is None else [snapshot.filling.text]
    if seconds is None:
        rates = (snapshot.push_per_second, snapshot.pop_per_second)
        known = snapshot.gap is not None and None not in rates
        if usual or not known:
            yield "full in", next(iter(usual), formats.UNKNOWN), ""
        else:
            yield "filling", "no", ""
        return
    words = formats.ESTIMATE + formats.duration(seconds) if seconds else "full"
    soonest, latest = snapshot.full_in_range_seconds
    if seconds and soonest is not None and snapshot.filling_per_second is not None:
        until = "never" if latest is None else formats.duration(latest)
        words += f" ({formats.duration(soonest)} to {until})"
    words = "; ".join([words, *usual])
    yield "full in", words, "critical" if not seconds else "warning" if seconds < 600 else ""
    buys = snapshot.resize_buys_seconds(2 * (snapshot.capacity or 0))
    if buys is not None and width >= _WIDE:
        yield "headroom of twice the size", formats.duration(buys), ""


def _holders(snapshot: QueueSnapshot) -> str:
    if snapshot.holders is None:
        return formats.UNKNOWN
    if snapshot.held_seconds is None:
        return f"{snapshot.holders:,}"
    oldest = [holder.held_for for holder in snapshot.held_by[:1]]
    since = oldest or [formats.duration_between(None, snapshot.held_seconds)]
    return f"{snapshot.holders:,}, the oldest {since[0]}"


def limit_texts(snapshot: QueueSnapshot, thresholds: Thresholds) -> Iterator[str]:
    """Each limit that the queue can reach: `90 % full, critical 100 %`."""
    if snapshot.stuck is not None or "stuck" in snapshot.unknown:
        yield f"stuck after {formats.duration(thresholds.stuck_after_seconds)}"
    for limit in LIMITS.values():
        figure = limit.figure
        if figure is None or (limit is FULL and snapshot.capacity is None):
            continue
        # An empty queue has no age, but a limit of it.
        if figure.needs and snapshot.text_of(figure.name) == formats.NOT_APPLICABLE:
            continue
        by_share = limit is ERROR_LIMIT and thresholds[limit.name] == NO_LIMITS
        shown = ERROR_SHARE if by_share else limit
        yield from _limit(shown, thresholds[shown.name])


def _limit(limit: Limit, limits: Limits) -> Iterator[str]:
    warning, critical = (
        None if value is None else limit.unit.text(value)
        for value in (limits.warning, limits.critical)
    )
    if warning is not None:
        yield limit.words.format(warning) + (f" (critical {critical})" if critical else "")
    elif critical is not None:
        yield limit.words.format(critical) + " is critical"


_MANY_LINES = 36


class QueueDetail(TextView):
    """Two lines, or four on a large screen, so that nothing below moves."""

    def draw(self, view: QueueView | None) -> None:
        if view is None:
            self.set_text(Text())
            return
        lines = [self._verdict(view), self._figures(view)]
        if self.app.size.height >= _MANY_LINES:
            worst = next(
                (
                    finding_view
                    for finding_view in view.findings
                    if finding_view.finding is not None
                ),
                None,
            )
            lines += [self._why(worst), self._more_of(worst)]
        show_lines(self, lines)

    def draw_group(self, group: Group) -> None:
        """What its line in the table has no room for: a connection's server and rights, or why it
        does not answer; of a group those that do not answer; how many queues have problems."""
        head = Text(no_wrap=True)
        if group.connection:
            (view,) = group.connections
            words = view.explanation or "  ".join(filter(None, (view.server, view.rights)))
            head.append(plain(view.name), style_of(self, "strong"))
        else:
            dead = [one for one in group.connections if one.level > Severity.OK]
            silent = [plain(one.name.removeprefix(f"{one.group}/")) for one in dead]
            others = {one.link.value for one in group.connections if one.link is not Link.ALIVE}
            words = f"no answer: {', '.join(silent)}" if silent else ", ".join(sorted(others))
            words = words or "all of them answer"
            head.append(group.title, style_of(self, "strong"))
        style = SEVERITY_STYLES.get(group.level, "quiet")
        head.append(f"  {' '.join(words.split())}", style_of(self, style))
        counts = Counter(view.level.word for view in group.queues if view.level > Severity.NOTE)
        text = ", ".join(f"{count} {word}" for word, count in sorted(counts.items()))
        queues = Text(f"queues: {text}" if text else "", style_of(self, "quiet"), no_wrap=True)
        show_lines(self, [head, queues])

    def draw_finding(self, view: FindingView | None) -> None:
        """A finding: its full text, and its repair or its cause."""
        if view is None:
            self.set_text(Text())
            return
        head = Text(no_wrap=True)
        head.append(view.label, style_of(self, "strong"))
        head.append(f"  {view.code}", style_of(self, "quiet"))
        if view.connection_label:
            head.append(f"  on {view.connection_label}", style_of(self, "quiet"))
        head.append(f"  {view.text}", style_of(self, view.style))
        lines = [head, self._more_of(view, "Enter: ")]
        if self.app.size.height >= _MANY_LINES:
            lines = [head, self._why(view), *lines[1:], Text()]
        show_lines(self, lines)

    def _more_of(self, view: FindingView | None, key: str = "repaired by: ") -> Text:
        """The repair, else the consequence."""
        if view is None or view.finding is None:
            return Text()
        if view.repair_text:
            line = Text(key, style_of(self, "quiet"), no_wrap=True)
            return line.append(view.repair_text, style_of(self, "strong"))
        return Text(first_line(view.finding.consequence), style_of(self, "quiet"), no_wrap=True)

    def _why(self, view: FindingView | None) -> Text:
        why = "" if view is None or view.finding is None else view.finding.cause
        return Text(first_line(why), style_of(self, "quiet"), no_wrap=True)

    def _verdict(self, view: QueueView) -> Text:
        line = Text(no_wrap=True)
        _append_name(line, self, view)
        _append_state(line, self, view)
        problems = [
            finding_view for finding_view in view.findings if finding_view.level > Severity.NOTE
        ]
        words = ", ".join(finding_view.text for finding_view in problems)
        if not words and view.stale_seconds is None:
            words = "nothing wrong in the figures"
            if view.diagnosis is not None and view.diagnosis.healthy:
                words = full_soon(view.full_in_seconds) or view.diagnosis.verdict
        style = SEVERITY_STYLES.get(
            max((finding_view.level for finding_view in problems), default=Severity.OK), "quiet"
        )
        line.append(f"  {words}", style_of(self, style))
        if view.diagnosis is not None and view.diagnosis.unseen:
            unseen = first_line(view.diagnosis.unseen[0])
            line.append(f"  not examined: {unseen}", style_of(self, "quiet"))
        return line

    def _figures(self, view: QueueView) -> Text:
        """Figures that a narrow table drops, and those without a column."""
        line, snapshot = Text(no_wrap=True), view.snapshot
        for figure in COLUMNS:
            text = snapshot.text_of(figure.name)
            if text != formats.NOT_APPLICABLE and not (figure.width and figure.narrow):
                line.append(f"{text} {figure.title}  ", style_of(self, "quiet"))
        if snapshot.capacity is not None:
            used = snapshot.text_of("gap")
            line.append(f"{used} of {snapshot.capacity:,} slots  ", style_of(self, "quiet"))
        if snapshot.filling is not None:
            line.append(f"full in {snapshot.filling.text}  ", style_of(self, "quiet"))
        if name := slowest_subscriber(snapshot):
            line.append(f"{name} is slowest  ", style_of(self, ""))
        if view.examined_seconds is not None:
            ago = whole_seconds(view.examined_seconds)
            line.append(f"the doctor ran {ago} ago", style_of(self, "quiet"))
        for kind in () if snapshot.latency is None else LATENCY_KINDS:
            of: Percentiles = getattr(snapshot.latency, kind)
            if of.p95 is not None:
                line.append(f"  {kind} p95 {formats.duration(of.p95)}", style_of(self, "quiet"))
        return line
