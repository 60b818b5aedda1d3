"""List what happened to a queue, in order of time: from recordings, the audit and the catalog."""

from collections.abc import Iterator, Mapping, Sequence

from console.features.history.points import FINDING, NOTE
from console.features.why.events import CONNECTION, CONSUMER, FIGURE, RECORDING, UNATTENDED, Event
from console.features.why.explain import Timeline, timeline
from console.formats import duration, first_line, numbered, plain
from console.views.view import Column, Display, Line, Source, View

SIGNS = {
    FINDING: "!", NOTE: "◆", UNATTENDED: "⚙", CONSUMER: "☻", CONNECTION: "✖", FIGURE: "~",
    RECORDING: "…",
}  # fmt: skip
_ACTED = "▶"


def read(source: Source) -> Timeline:
    """`source.values`: those of `timeline`."""
    return timeline(**source.values)


def rows(events: Sequence[Event]) -> Mapping[str, Event]:
    """The newest first, each by a key that stays the same when others come."""
    return {repr((e.at, e.kind, e.name, e.action_id)): e for e in reversed(events)}


def style(event: Event) -> str:
    if event.severity in {"critical", "warning"}:
        return event.severity
    return "quiet" if event.kind in {FIGURE, RECORDING} else "strong"


def columns(display: Display) -> Sequence[Column[Event]]:
    return (
        display.time_column("at", "when", lambda e: e.at),
        Column("lasted", "for", lambda e: e.lasted, "quiet", 5, 12, sort_key=lambda e: e.seconds),
        Column("kind", "kind", lambda e: e.kind, "quiet", 6, 10),
        Column("name", "what", lambda e: f"{SIGNS.get(e.kind, _ACTED)} {plain(e.name)}", style,
               8, 26),
        Column("words", "words", lambda e: first_line(e.words), "", 34, 200),
    )  # fmt: skip


def summary(result: Timeline, _: Display) -> Sequence[Line]:
    length = duration((result.span.end - result.span.begin).total_seconds())
    count = numbered(len(result.events), "event") if result.events else "nothing happened"
    lines: list[Line] = [[(count, "strong"), (f" in the last {length}", "quiet")]]
    if result.unread:
        lines.append([(plain(result.unread), "warning")])
    return lines


def _text(result: Timeline, display: Display) -> Iterator[str]:
    """The oldest first, as it happened."""
    for line in summary(result, display):
        yield "".join(text for text, _ in line)
    if result.events:
        yield from VIEW.table(result.events, display)


VIEW = View(
    "timeline",
    __doc__,
    read,
    lambda result: rows(result.events),
    columns,
    empty="Nothing happened.",
    summary=summary,
    detail=Event.detail,
    text=_text,
    json=Timeline.as_json,
    drop_order=("kind", "lasted"),
)
