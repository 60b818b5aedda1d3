"""Say why a queue is not as usual: what changed, and what may have caused it."""

from collections.abc import Iterator, Mapping, Sequence

from console.features.why.causes import Cause
from console.features.why.events import FIGURE
from console.features.why.explain import Explanation, distinct, explain
from console.features.why.usual import MEASURES, Change
from console.features.why.views import timeline
from console.figures import POP, PUSH
from console.formats import first_line, plain
from console.views.view import Column, Display, Line, Part, Source, View, aligned

Numbered = tuple[int, Cause]
_CHANGES = 5
"""Of the figures that are shown."""
_BESIDE = 12
"""Of the events beside them that are printed."""


def read(source: Source) -> Explanation:
    """`source.values`: those of `explain`."""
    return explain(**source.values)


def _rows(result: Explanation) -> Mapping[str, Numbered]:
    return {repr((one.at, one.what)): (n, one) for n, one in enumerate(result.causes, 1)}


def _columns(display: Display) -> Sequence[Column[Numbered]]:
    return (
        Column("number", "", lambda one: f"{one[0]}.", "strong", 2, 2),
        display.time_column("at", "since", lambda one: one[1].at),
        Column("what", "what may have caused it", lambda one: first_line(one[1].what), "strong",
               20, 200),
    )  # fmt: skip


def _summary(result: Explanation, display: Display) -> Sequence[Line]:
    style = "strong" if result.causes else "warning" if result.harms else ""
    lines: list[Line] = [[(result.verdict, style)]]
    if result.unread:
        lines.append([(plain(result.unread), "warning")])
    if result.now:
        lines.append([(f"  last minute: {result.now}", "")])
    for one in sorted(distinct(result.changes), key=_order)[:_CHANGES]:
        since = "since before" if one.before else "since"
        at = f"{since} {one.at.astimezone(display.zone):%H:%M}"
        lines.append([(f"  {at} {one.words}", "warning" if one.harms else "")])
    if result.basis:
        lines.append([(f"  usually: as in {result.basis}", "quiet")])
    if result.lasting:
        lines.append([(f"  findings still open: {', '.join(map(plain, result.lasting))}", "")])
    return lines


def _order(change: Change) -> tuple[bool, int]:
    """What harms, and the traffic, first."""
    name = change.measure.name
    return not (change.harms or name in {POP.name, PUSH.name}), list(MEASURES).index(name)


def _detail(row: Numbered, display: Display) -> Sequence[Part]:
    _, cause = row
    parts: list[Part] = [(f"{first_line(cause.what)}{_follows(cause)}\n", "strong")]
    for one in cause.evidence:
        at = "" if one.at is None else f"{one.at.astimezone(display.zone):%H:%M:%S}  "
        parts.append((f"  {at}{first_line(one.words)}\n", ""))
    return [*parts, ("not this if: ", "quiet"), (first_line(cause.disproof), "")]


def _follows(cause: Cause) -> str:
    return f" (it may follow from {cause.follows})" if cause.follows else ""


def _text(result: Explanation, display: Display) -> Iterator[str]:
    yield plain(f"{result.where}, at {display.moment(result.at)}")
    for line in _summary(result, display):
        yield "".join(text for text, _ in line)
    for row in _rows(result).values():
        yield ""
        number, cause = row
        what = f"{first_line(cause.what)}{_follows(cause)}"
        yield f"{number}. {what}, since {display.moment(cause.at)}"
        _, *rest = "".join(text for text, _ in _detail(row, display)).splitlines()
        yield from (f"   {line}" for line in rest)
    beside = [event for event in result.events if event.kind != FIGURE][-_BESIDE:]
    if beside and result.changes:
        yield ""
        yield "what happened beside it, and what people did in the two hours before:"
        yield from aligned(timeline.columns(display), beside, display.zone)


VIEW = View(
    "why",
    __doc__,
    read,
    _rows,
    _columns,
    summary=_summary,
    detail=_detail,
    text=_text,
    json=lambda result: result.as_json(None),
)
