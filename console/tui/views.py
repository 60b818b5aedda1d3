"""What screens draw: connections and queues at one moment, frozen: a paused screen keeps them."""

import operator
import re
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from console.doctor.finding import Diagnosis
from console.monitor.filters import MARK
from console.monitor.limits import Severity
from console.monitor.snapshot import QueueSnapshot
from console.tui.findings import CONNECTION, FindingView, QueueKey
from console.tui.text import whole_seconds

BUCKET_SECONDS = 5.0
"""One cell of a trend: the most that were ready in that time."""
TREND_CELLS = 60


class Link(Enum):
    """How a connection is."""

    OPENING = "connecting"
    ALIVE = "alive"
    SILENT = "no answer"
    FAILING = "cannot sample"
    LOST = "lost"
    UNRECORDED = "not recorded"
    """In a replay: nobody was looking, whatever the reason; of the connection that says nothing."""


@dataclass(frozen=True)
class ConnectionView:
    """One connection at one moment."""

    name: str
    link: Link
    since_seconds: float
    """How long it has been without an answer; 0 while alive."""
    ever_answered: bool = False
    latency_seconds: float | None = None
    retry_in_seconds: float | None = None
    production: bool = False
    rights: str = ""
    """What may be done by it, and who enforces that, in words."""
    why: str = ""
    color: str = ""
    """The mark beside its name; empty: none."""
    group: str = ""
    """Which connections it stands with; empty: it stands alone."""

    @property
    def level(self) -> Severity:
        """Alive and opening are fine, and so is what nobody examined."""
        if self.link in {Link.ALIVE, Link.OPENING, Link.UNRECORDED}:
            return Severity.OK
        return Severity.WARNING if self.link is Link.SILENT else Severity.CRITICAL


def link_text(view: ConnectionView, *, again: bool = True) -> str:
    """Since when a connection gives no answer; `again`: and when it is tried again."""
    since = whole_seconds(view.since_seconds)
    if view.link is Link.OPENING:
        return "connecting" if view.since_seconds < 1 else f"connecting {since}"
    if view.link is Link.SILENT:
        return f"no answer for {since}"
    if view.link is Link.UNRECORDED:
        return f"not recorded for {since}" if view.ever_answered else "not recorded yet"
    words = f"{_failing(view)} {since}"
    return f"{words}, again {_retry(view)}" if again else words


def connection_finding(name: str, view: ConnectionView) -> FindingView:
    words = _failing(view)
    if view.retry_in_seconds is not None:
        words += f", again {_retry(view)}"
    summary = f"{words}: {view.why}" if view.why else words
    key = (name, "", "", CONNECTION, "")
    return FindingView(key, view.level, summary, view.since_seconds, label=view.name)


def _failing(view: ConnectionView) -> str:
    never = view.link is not Link.FAILING and not view.ever_answered
    return "no connection" if never else view.link.value


def _retry(view: ConnectionView) -> str:
    return f"in {whole_seconds(view.retry_in_seconds)}" if view.retry_in_seconds else "now"


@dataclass(frozen=True)
class QueueView:
    """One queue at one moment."""

    key: QueueKey
    label: str
    """Its name, with the schema where the name alone would not do; safe to show."""
    snapshot: QueueSnapshot
    full_in_seconds: float | None
    trend: tuple[int | None, ...]
    """The most that were ready in each of the last buckets, the newest last; None: not seen."""
    connection_label: str = ""
    """Its connection, where there are several; safe to show."""
    color: str = ""
    """Of the connection's mark; empty: none."""
    stale_seconds: float | None = None
    """How old the figures are, where the connection gives no new ones."""
    link: Link = Link.ALIVE
    """How its connection is."""
    diagnosis: Diagnosis | None = None
    """What the doctor said last; None: it has not run yet."""
    examined_seconds: float | None = None
    """How long ago that was."""
    examining: bool = False
    """Somebody has asked the doctor to examine it, and waits for what it tells."""
    findings: tuple[FindingView, ...] = ()
    """The doctor's, notes too, and what only the figures say; the gravest first."""

    @property
    def connection(self) -> str:
        return self.key[0]

    @property
    def unreachable(self) -> bool:
        return self.link is Link.LOST or self.link is Link.FAILING

    @property
    def why_stale(self) -> str:
        return "cannot be reached" if self.unreachable else self.link.value

    @property
    def level(self) -> Severity:
        """A queue that cannot be reached is critical, whatever its last figures said."""
        if self.unreachable:
            return Severity.CRITICAL
        grave = (one.level for one in self.findings if one.is_problem)
        return max(grave, default=Severity.OK)


@dataclass(frozen=True)
class AllClear:
    """What is said where nothing is found: `clear` only after everything was examined."""

    text: str
    clear: bool = False
    blind: bool = False
    """The doctor itself is in trouble: that is told whatever else is found."""


class Trend:
    """The most that were ready, in buckets of time."""

    def __init__(self) -> None:
        self._seen: deque[int | None] = deque(maxlen=TREND_CELLS)
        self._newest = 0
        """The bucket of the last of them."""

    def add(self, at: float, ready: int | None) -> None:
        bucket = int(at // BUCKET_SECONDS)
        if self._seen and bucket == self._newest:
            before = self._seen.pop()
            known = [count for count in (before, ready) if count is not None]
            ready = max(known, default=None)
        elif self._seen:
            self._seen.extend([None] * min(bucket - self._newest - 1, TREND_CELLS))
        self._seen.append(ready)
        self._newest = bucket

    def cells(self, now: float) -> tuple[int | None, ...]:
        """The last TREND_CELLS buckets, up to the one of now."""
        passed = max(0, min(int(now // BUCKET_SECONDS) - self._newest, TREND_CELLS))
        found = (*self._seen, *[None] * passed)[-TREND_CELLS:]
        return (*[None] * (TREND_CELLS - len(found)), *found)


# The filter of the queue table: free words and `field:value`, all of which must hold.
#
# `mail` is found in the name, design, schema or connection; `design:ring` and `state:critical` in
# that field; `errors:>0` and `ready:<=100` compare; a word with blanks stands in double quotes;
# `@sick` stands for the filter that was saved under that name.

_WORD = re.compile(r'(?:(?P<field>[a-z_/]+):)?(?:"(?P<quoted>[^"]*)"?|(?P<bare>\S+))', re.I)
_NUMBER = re.compile(r"(?P<sign><=|>=|<|>|=)?(?P<number>\d+(?:\.\d+)?)")
_SIGNS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
}
_TEXTS: dict[str, Callable[[QueueView], str]] = {
    "queue": lambda view: view.snapshot.queue,
    "design": lambda view: view.snapshot.design,
    "schema": lambda view: view.snapshot.schema,
    "connection": lambda view: view.connection,
    "state": lambda view: view.level.word + (" stale" if view.stale_seconds is not None else ""),
}
_NUMBERS: dict[str, str] = {
    "ready": "ready",
    "age": "age_seconds",
    "push/s": "push_per_second",
    "pop/s": "pop_per_second",
    "gap": "gap",
    "claimed": "claimed",
    "stuck": "stuck",
    "errors": "errors",
    "done": "done",
    "scheduled": "scheduled",
    "capacity": "capacity",
}
_FREE = ("queue", "design", "schema", "connection")

Test = Callable[[QueueView], bool]


@dataclass(frozen=True)
class Filter:
    """What was typed, and the tests that it means."""

    text: str = ""
    tests: tuple[Test, ...] = ()

    def __bool__(self) -> bool:
        """Whether it hides anything at all."""
        return bool(self.tests)

    def matches(self, view: QueueView) -> bool:
        return all(test(view) for test in self.tests)

    def names(self, connection: str) -> bool:
        """Whether a connection is shown whatever its queues are."""
        return self.text.removeprefix("connection:").casefold() in connection.casefold()


def parse(text: str, saved: Mapping[str, str] | None = None) -> Filter:
    """The filter that a line means. Nothing is wrong in it: what is no field is a word."""
    meant = expand_saved(text, saved or {})
    return Filter(text.strip(), tuple(_test(match) for match in _WORD.finditer(meant)))


def expand_saved(text: str, saved: Mapping[str, str]) -> str:
    """The line with the filters that are named in it."""

    def meant(match: re.Match[str]) -> str:
        word = match["bare"] or ""
        named = not match["field"] and word.startswith(MARK)
        return saved.get(word.removeprefix(MARK), match[0]) if named else match[0]

    return _WORD.sub(meant, text).strip()


def _test(match: re.Match[str]) -> Test:
    quoted = match["quoted"]
    value = quoted if quoted is not None else match["bare"]
    name = (match["field"] or "").lower()
    if name in _TEXTS:
        return _contains((name,), value)
    if name in _NUMBERS and (number := _NUMBER.fullmatch(value)):
        return _compares(_NUMBERS[name], number["sign"] or "=", float(number["number"]))
    return _contains(_FREE, f"{match['field']}:{value}" if match["field"] else value)


def _contains(names: tuple[str, ...], value: str) -> Test:
    wanted = value.casefold()
    return lambda view: any(wanted in _TEXTS[name](view).casefold() for name in names)


def _compares(name: str, sign: str, number: float) -> Test:
    """What the design has not, and what is unknown, is neither more nor less."""

    def test(view: QueueView) -> bool:
        value = getattr(view.snapshot, name)
        return value is not None and _SIGNS[sign](value, number)

    return test
