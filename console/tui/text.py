"""Untrusted text and small figures, made fit for one line of a screen."""

from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size

from console import formats
from console.errors import ConsoleError
from console.monitor import QueueSnapshot

_BARS = "▁▂▃▄▅▆▇█"

plain = formats.plain


def first_line(text: str) -> str:
    """The first line of a message of several, safe to show."""
    return plain(text.strip().partition("\n")[0].strip())


def said(error: ConsoleError) -> str:
    """What could not be done, why, and what to do next; safe to show."""
    return "\n".join(map(plain, str(error).splitlines()))


def sentence(words: str) -> str:
    """`no rights` as a sentence: `No rights.`"""
    return f"{words[:1].upper()}{words[1:]}."


def shorten(text: str, width: int) -> str:
    """At most `width` cells; what is cut off is marked with an ellipsis."""
    if cell_len(text) <= width:
        return text
    if width <= 1:
        return "…"[:width]
    return set_cell_size(text, width - 1).rstrip() + "…"


def whole_seconds(seconds: float) -> str:
    """A duration that is counted up or down on the screen: no tenths that flicker."""
    return f"{seconds:.0f} s" if seconds < 59.5 else formats.duration(round(seconds))


def figure(snapshot: QueueSnapshot, name: str) -> str:
    """One figure of a queue: `·` where it has none, `?` where it is not known, `≈` estimated."""
    value = getattr(snapshot, name)
    if value is None:
        return formats.UNKNOWN if name in snapshot.unknown else formats.NOT_APPLICABLE
    if name == "age_seconds":
        return formats.duration(max(value, 0.0))  # two clocks: never younger than nothing
    if name in {"push_per_second", "pop_per_second"}:
        return formats.rate(value)
    return formats.count(value, estimated=name in snapshot.estimated)


def sparkline(values: Sequence[int | None]) -> str:
    """A bar a value, from 0 to the highest of them. None leaves a gap; only a 0 is the lowest."""
    highest = max((value for value in values if value is not None), default=0)

    def bar(value: int | None) -> str:
        if value is None:
            return " "
        if value <= 0 or highest <= 0:
            return _BARS[0]
        return _BARS[max(1, round(value / highest * (len(_BARS) - 1)))]

    return "".join(map(bar, values))
