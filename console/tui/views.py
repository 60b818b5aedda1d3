"""What screens draw: connections and queues at one moment, frozen."""

import operator
import re
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum

from console.doctor.finding import Diagnosis
from console.engines.standby import Standby
from console.errors import UsageError
from console.figures import AGE, SHOWN
from console.filters import MARK, line_of, term_of, words_of
from console.formats import parse_duration
from console.monitor.limits import Severity
from console.monitor.snapshot import QueueSnapshot
from console.tui.findings import QueueKey
from console.tui.text import whole_seconds
from console.views.doctor import CONNECTION, FindingView

BUCKET_SECONDS = 5.0
"""One cell of a trend: the highest number of ready messages in that time."""
TREND_CELLS = 60


class Link(Enum):
    """The state of a connection."""

    OPENING = "connecting"
    ALIVE = "alive"
    SILENT = "no answer"
    FAILING = "cannot sample"
    LOST = "lost"
    UNRECORDED = "not recorded"
    """In a replay: nothing was recorded then, for whatever reason."""


@dataclass(frozen=True)
class ConnectionView:
    """One connection at one moment."""

    name: str
    link: Link
    since_seconds: float
    """How long it has not answered; 0 while alive."""
    ever_answered: bool = False
    latency_seconds: float | None = None
    retry_in_seconds: float | None = None
    production: bool = False
    rights: str = ""
    """What may be done on it, and who enforces that, as a text."""
    why: str = ""
    explanation: str = ""
    """Why it cannot be sampled, and what to do about it, on several lines; safe to show."""
    color: str = ""
    """Of the mark beside its name; empty: none."""
    group: str = ""
    """Empty: it belongs to none."""
    standby: Standby | None = None
    """As last sampled; None: a primary, or not known yet."""
    server: str = ""
    """Primary or not, sessions, pooled or not: as a text, once known."""

    @property
    def standby_words(self) -> str:
        """`STANDBY 5 min behind`; empty for a primary."""
        if self.standby is None:
            return ""
        kind = "STANDBY" if self.standby.subscription is None else "COPY"
        return f"{kind} {self.standby.short_lag}".strip()

    @property
    def level(self) -> Severity:
        """Opening and not recorded are fine, as alive is."""
        if self.link in {Link.ALIVE, Link.OPENING, Link.UNRECORDED}:
            return Severity.OK
        return Severity.WARNING if self.link is Link.SILENT else Severity.CRITICAL


def link_word(view: ConnectionView) -> str:
    """That a connection does not answer, without figures."""
    return _failing(view) if view.level is Severity.CRITICAL else view.link.value


def link_text(view: ConnectionView, *, with_retry: bool = True) -> str:
    """How long a connection has not answered; `with_retry`: and when the next attempt is."""
    since = whole_seconds(view.since_seconds)
    if view.link is Link.OPENING:
        return "connecting" if view.since_seconds < 1 else f"connecting {since}"
    if view.link is Link.SILENT:
        return f"no answer for {since}"
    if view.link is Link.UNRECORDED:
        return f"not recorded for {since}" if view.ever_answered else "not recorded yet"
    words = f"{_failing(view)} {since}"
    return f"{words}, again {_retry(view)}" if with_retry else words


def connection_finding(name: str, view: ConnectionView) -> FindingView:
    words = _failing(view)
    if view.retry_in_seconds is not None:
        words += f", again {_retry(view)}"
    summary = f"{words}: {view.why}" if view.why else words
    key = (name, "", "", CONNECTION, "")
    return FindingView(
        key, view.level, summary, view.since_seconds, label=view.name, explanation=view.explanation
    )


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
    """Its name, with the schema if the name alone is ambiguous; safe to show."""
    snapshot: QueueSnapshot
    full_in_seconds: float | None
    trend: tuple[int | None, ...]
    """The most ready messages in each of the last buckets, the newest last; None: unknown."""
    connection_label: str = ""
    """Its connection, if there are several; safe to show."""
    color: str = ""
    """Of the connection's mark; empty: none."""
    stale_seconds: float | None = None
    """The age of the figures, if the connection gives no new ones."""
    link: Link = Link.ALIVE
    diagnosis: Diagnosis | None = None
    """The doctor's last; None: it has not run yet."""
    examined_seconds: float | None = None
    """How long ago that was."""
    examining: bool = False
    """Whether an examination was requested and its result is pending."""
    next_examination_seconds: float | None = None
    """Until the doctor examines it again; None: not known, or it is at work."""
    findings: tuple[FindingView, ...] = ()
    """The doctor's, including notes, and those from figures; the most severe first."""

    @property
    def connection(self) -> str:
        return self.key[0]

    @property
    def unreachable(self) -> bool:
        return self.link is Link.LOST or self.link is Link.FAILING

    @property
    def why_stale(self) -> str:
        if self.link is Link.ALIVE:
            return "its server is a standby"
        return "cannot be reached" if self.unreachable else self.link.value

    @property
    def level(self) -> Severity:
        """A queue that cannot be reached is critical, whatever its last figures said."""
        if self.unreachable:
            return Severity.CRITICAL
        return max(
            (finding.level for finding in self.findings if finding.is_problem), default=Severity.OK
        )


@dataclass(frozen=True)
class AllClear:
    """The text shown without findings; `clear` only after everything was examined."""

    text: str
    clear: bool = False
    blind: bool = False
    """The doctor itself fails: shown whatever else is found."""


class Trend:
    """The highest number of ready messages per bucket of time."""

    def __init__(self) -> None:
        self._counts: deque[int | None] = deque(maxlen=TREND_CELLS)
        self._newest = 0
        """The number of the last bucket."""

    def add(self, at: float, ready: int | None) -> None:
        bucket = int(at // BUCKET_SECONDS)
        if self._counts and bucket == self._newest:
            before = self._counts.pop()
            known = [count for count in (before, ready) if count is not None]
            ready = max(known, default=None)
        elif self._counts:
            self._counts.extend([None] * min(bucket - self._newest - 1, TREND_CELLS))
        self._counts.append(ready)
        self._newest = bucket

    def cells(self, now: float) -> tuple[int | None, ...]:
        """The last TREND_CELLS buckets, up to the current one."""
        passed = max(0, min(int(now // BUCKET_SECONDS) - self._newest, TREND_CELLS))
        cells = (*self._counts, *[None] * passed)[-TREND_CELLS:]
        return (*[None] * (TREND_CELLS - len(cells)), *cells)


# The filter of the queue table: words and terms, all of which must match.
#
# `mail` matches the name, design, schema or connection; `design=ring` and `state=critical` that
# field, `queue~mail` a part of it; `errors>0` and `ready<=100` compare; a value with blanks is
# quoted; `@sick` is the saved filter of that name.

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
_NUMBERS = {figure.title: figure for figure in SHOWN}
_FREE = ("queue", "design", "schema", "connection")

Test = Callable[[QueueView], bool]


@dataclass(frozen=True)
class Filter:
    """A filter as typed, and its tests."""

    text: str = ""
    tests: tuple[Test, ...] = ()
    problem: str = ""
    """What of it is no term of the overview, and is searched for as a word."""

    def __bool__(self) -> bool:
        """Whether it filters at all."""
        return bool(self.tests)

    def matches(self, view: QueueView) -> bool:
        return all(test(view) for test in self.tests)

    def names(self, connection: str) -> bool:
        """Whether a connection is shown even if none of its queues matches."""
        wanted = re.sub("^connection[=~]", "", self.text)
        return wanted.casefold() in connection.casefold()


def parse(text: str, saved: Mapping[str, str] | None = None) -> Filter:
    """Parse a filter. There are no errors: an unknown field is taken as a word."""
    words = _words(expand_saved(text, saved or {}))
    tests = [(word, _term_test(word)) for word in words]
    odd = [word for word, test in tests if test is None and term_of(word) is not None]
    problem = f"{', '.join(odd)}: fields are {', '.join((*_TEXTS, *_NUMBERS))}" if odd else ""
    found = tuple(test or _contains(_FREE, word) for word, test in tests)
    return Filter(text.strip(), found, problem)


def expand_saved(text: str, saved: Mapping[str, str]) -> str:
    """The line with saved filters filled in."""
    words = _words(text)
    if not any(word.startswith(MARK) for word in words):
        return text.strip()
    return " ".join(
        saved.get(word.removeprefix(MARK), word) if word.startswith(MARK) else line_of([word])
        for word in words
    )


def _words(text: str) -> list[str]:
    try:
        return words_of(text)
    except UsageError:  # a quotation mark that is not closed yet
        return text.replace('"', "").split()


def _term_test(word: str) -> Test | None:
    """None: it is no term, or not one that there is."""
    term = term_of(word)
    if term is None or not term.value:
        return None
    name = term.field.lower()
    if name in _TEXTS and term.operator == "~":
        return _contains((name,), term.value)
    if name in _TEXTS and term.operator == "=":
        return _is(name, term.value)
    if name in _NUMBERS and term.operator in _SIGNS:
        figure = _NUMBERS[name]
        with suppress(ValueError):
            return _compares(figure.name, term.operator, float(term.value))
        with suppress(UsageError):
            if figure is AGE:
                return _compares(figure.name, term.operator, parse_duration(term.value))
    return None


def _is(name: str, value: str) -> Test:
    """A state may be `critical stale`, of which each word is one."""
    wanted = value.casefold()

    def test(view: QueueView) -> bool:
        text = _TEXTS[name](view).casefold()
        return wanted == text or (name == "state" and wanted in text.split())

    return test


def _contains(names: tuple[str, ...], value: str) -> Test:
    wanted = value.casefold()
    return lambda view: any(wanted in _TEXTS[name](view).casefold() for name in names)


def _compares(name: str, sign: str, number: float) -> Test:
    """A figure that is unknown, or that the design lacks, never matches."""

    def test(view: QueueView) -> bool:
        value = getattr(view.snapshot, name)
        return value is not None and _SIGNS[sign](value, number)

    return test
