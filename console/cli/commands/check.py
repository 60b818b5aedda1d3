"""Check queues against their limits, one line each, for cron and monitoring.

Without an option a figure has its configured limits; one stuck claim is a WARNING, as is a
message that was not taken within 5 minutes of its due time. A figure
that has a limit but is unknown is UNKNOWN, as is a queue that cannot be read, and a call that
matches no queue. On a standby figures are of the moment that it has replayed; without
--max-lag they are UNKNOWN if its replay is paused, receives nothing or is over 60 s behind.
What an operator has silenced is OK, with the operator's name. The first line
is the summary with performance data.

Exit 0: all OK; 1: anything else; 3: cannot connect. With --plugin: 0 OK, 1 WARNING, 2 CRITICAL,
3 UNKNOWN, including a failed connection, which is then reported on stdout.

\b
Examples:
  dbq-console check --profile orders
  dbq-console check --fleet shops
  dbq-console check mail --max-depth 10000 --max-age 10m --max-errors 0 --plugin
"""

import math
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import click

from console.catalog import Queue
from console.catalog.decisions import Decision
from console.cli.command import NAMES
from console.cli.commands.status import chosen, stuck_after
from console.cli.context import Call
from console.engines import Database
from console.engines.standby import Standby
from console.errors import ConnectionFailedError, ConsoleError
from console.figures import CAPACITY, FULL, JUDGED, LIMITS, MESSAGES, OVERDUE, STUCK_LIMIT, Limit
from console.formats import UNKNOWN, numbered, plain
from console.monitor.limits import (
    NO_LIMITS,
    Exceeded,
    Limits,
    Severity,
    Thresholds,
    limit_silence,
    silence_for,
    slowest_subscriber,
    stuck_silence,
    value_of,
)
from console.monitor.overdue import has_due_times, overdue
from console.monitor.sample import take_sample
from console.monitor.sample_queries import limit_transaction
from console.monitor.snapshot import QueueSnapshot, snapshot
from console.verbs.command import Command
from console.verbs.parameters import DURATION, Parameter

Maximums = Mapping[str, float | None]
"""The `--max-NAME` of the command line; None: the configured limits apply. Without that of the lag
a standby has to be current."""

STUCK = Limits(warning=1)
"""One stuck claim is a warning, as in the doctor."""
OVERDUE_CODE = "messages_overdue"
"""The doctor's finding about the same."""


@dataclass(frozen=True)
class Late:
    """Since when the first message that nobody took is due."""

    applies: bool
    """False: its messages have no due times."""
    seconds: float | None = None
    """None: not known."""


NOT_DUE = Late(applies=False)


@dataclass(frozen=True)
class CheckedFigure:
    """One figure of a queue with its limits."""

    limit: Limit
    value: float | None
    """None: unknown."""
    limits: Limits
    estimated: bool = False
    silenced: Decision | None = None
    """The decision that silences or acknowledges the exceeded limit."""
    subscriber: str = ""
    """The slowest subscriber, if this is its figure."""

    @property
    def name(self) -> str:
        return self.limit.name

    @property
    def severity(self) -> Severity:
        """UNKNOWN only if there is a limit."""
        if self.silenced is not None:
            return Severity.OK
        if self.value is None:
            return Severity.OK if self.limits == NO_LIMITS else Severity.UNKNOWN
        exceeded = self.exceeded
        return Severity.OK if exceeded is None else exceeded.level

    @property
    def exceeded(self) -> Exceeded | None:
        """The limit that is reached, if any."""
        found = self.limits.exceeded(self.value)
        if found is None or self.value is None:
            return None
        return replace(self._shown(self.value), limit=found[1], level=found[0])

    def _shown(self, value: float) -> Exceeded:
        return Exceeded(self.name, value, 0, Severity.OK, self.estimated, self.subscriber)

    @property
    def words(self) -> str:
        """`12,480 ready (critical from 10,000)`, `age ?`."""
        if self.value is None:
            return f"{self.name} {UNKNOWN}"
        shown = self._shown(self.value).text
        exceeded = self.exceeded
        if exceeded is None:
            return shown
        limit = f"{exceeded.level.word} from {exceeded.limit_text}"
        return f"{shown} ({limit}" + ("" if not self.silenced else f"; {self.silenced.words}") + ")"

    def perfdata(self, label: str) -> str:
        """`'orders depth'=12480;;9999;0;`: U if unknown.

        Such a value can only be a number, so an estimate is marked by a second one.
        """
        value = (
            "U"
            if self.value is None or math.isinf(self.value)
            else f"{self._scaled(self.value)}{self.limit.unit.symbol}"
        )
        low, high = (self._range(one) for one in (self.limits.warning, self.limits.critical))
        least = "" if self.limit is FULL else "0"
        found = f"'{label} {self.name}'={value};{low};{high};{least};"
        return f"{found} '{label} {self.name} estimated'=1;;;0;" if self.estimated else found

    def _range(self, limit: float | None) -> str:
        """The range of good values as plugins write it: they include N, our limits exclude it."""
        if limit is None:
            return ""
        if self.limit.unit is MESSAGES:
            return f"{limit - 1:.0f}"
        return f"@{self._scaled(limit)}:"

    def _scaled(self, number: float) -> str:
        if self.limit.unit.symbol == "%":
            number *= 100
        return f"{number:.3f}".rstrip("0").rstrip(".")


@dataclass(frozen=True)
class Checked:
    """The result for one queue."""

    queue: str
    schema: str
    design: str
    figures: tuple[CheckedFigure, ...]
    problem: str = ""
    """Why it could not be read."""
    standby: Standby | None = None
    """Where its figures are of."""
    most_lag_seconds: float | None = None

    @property
    def severity(self) -> Severity:
        """The most severe of its figures, which are unknown where they are too old."""
        unread = [Severity.UNKNOWN] if self.problem else []
        figures = (figure.severity for figure in self.figures)
        return max((*figures, self._lag, *unread), default=Severity.OK)

    @property
    def _lag(self) -> Severity:
        if self.standby is None:
            return Severity.OK
        most, lag = self.most_lag_seconds, self.standby.lag_seconds
        if most is None:
            return Severity.OK if self.standby.current else Severity.UNKNOWN
        if lag is None:
            return Severity.UNKNOWN
        return Severity.CRITICAL if lag > most else Severity.OK

    @property
    def words(self) -> str:
        """The problems, else all figures; of a standby also how far behind it is."""
        behind = "" if self.standby is None else f"; {plain(self.standby.words)}"
        if self.problem:
            return plain(self.problem) + behind
        wrong = [
            figure
            for figure in self.figures
            if figure.severity is not Severity.OK or figure.silenced
        ]
        return ", ".join(one.words for one in wrong or self.figures) + behind

    @property
    def lag_perfdata(self) -> str:
        """`'lag'=3.2s;;60;0;`: U if unknown."""
        lag = None if self.standby is None else self.standby.lag_seconds
        limit = "" if self.most_lag_seconds is None else f"{self.most_lag_seconds:g}"
        return f"'lag'={'U' if lag is None else f'{lag:.3f}s'};;{limit};0;"

    def as_json(self) -> dict[str, object]:
        """The stable object of `check --json`."""
        return {
            "queue": self.queue,
            "schema": self.schema,
            "design": self.design,
            "status": self.severity.word,
            "problem": self.problem,
            "figures": {
                f"{figure.name}_seconds" if figure.limit.unit.symbol == "s" else figure.name: {
                    "value": None if figure.value == math.inf else figure.value,  # not in JSON
                    "status": figure.severity.word,
                    "warning": figure.limits.warning,
                    "critical": figure.limits.critical,
                    "estimated": figure.estimated,
                    "silenced": None if figure.silenced is None else figure.silenced.as_json(),
                    "subscriber": figure.subscriber or None,
                }
                for figure in self.figures
            },
        }


def check(
    seen: QueueSnapshot,
    thresholds: Thresholds,
    most: Maximums,
    late: Late = NOT_DUE,
    standby: Standby | None = None,
) -> Checked:
    """Check one queue. Figures that its design does not have are left out."""
    known = [*_figures(seen, thresholds, most), *_overdue(thresholds, most, late)]
    figures = tuple(_silenced(figure, seen) for figure in known)
    checked = Checked(seen.queue, seen.schema, seen.design, figures, seen.problem)
    return replace(checked, standby=standby, most_lag_seconds=most.get("lag"))


def _overdue(thresholds: Thresholds, most: Maximums, late: Late) -> Iterator[CheckedFigure]:
    if late.applies:
        yield CheckedFigure(OVERDUE, late.seconds, _limits(OVERDUE, most, thresholds[OVERDUE.name]))


def _silenced(figure: CheckedFigure, seen: QueueSnapshot) -> CheckedFigure:
    """The figure with the decision that silences its exceeded limit, if there is one."""
    exceeded = figure.exceeded
    if exceeded is None:
        return figure
    if figure.limit is STUCK_LIMIT:
        by = stuck_silence(seen.silences, seen.stuck, seen.claims)
    elif figure.limit is OVERDUE:
        by = silence_for(seen.silences, OVERDUE_CODE, Severity.WARNING)
    else:
        by = limit_silence(seen.silences, exceeded)
    return replace(figure, silenced=by)


def _figures(
    seen: QueueSnapshot, thresholds: Thresholds, most: Maximums
) -> Iterator[CheckedFigure]:
    for limit, figure in JUDGED:
        value = value_of(limit, figure, seen)
        parts = {figure.name, CAPACITY.name} if limit is FULL else {figure.name}
        if value is not None or not parts.isdisjoint(seen.unknown):
            configured = STUCK if limit is STUCK_LIMIT else thresholds.of(limit, seen)
            yield CheckedFigure(
                limit,
                # Below 0, pops wait ahead: no slot is in use.
                None if value is None else max(0.0, value) if limit is FULL else value,
                _limits(limit, most, configured),
                figure.name in seen.estimated,
                subscriber=slowest_subscriber(seen) if limit is FULL and value is not None else "",
            )


def _limits(limit: Limit, most: Maximums, configured: Limits) -> Limits:
    """Critical above the maximum, if one is given: of counts from the next number on."""
    given, more = most.get(limit.name), 1 if limit.unit is MESSAGES else 0
    return configured if given is None else Limits(critical=given + more)


_PLUGIN_STATUS = {Severity.OK: 0, Severity.WARNING: 1, Severity.CRITICAL: 2, Severity.UNKNOWN: 3}
"""Exit statuses of monitoring plugins."""


def _run(call: Call, names: Sequence[str], plugin: bool, **given: Any) -> None:
    try:
        most = {name.removeprefix("max_"): value for name, value in given.items()}
        checkeds = _checked(call, names, most)
    except ConsoleError as error:
        if not plugin:
            raise
        words = plain(" ".join(str(error).split())).replace("|", "¦")
        empty = {"status": Severity.UNKNOWN.word, "summary": words, "queues": []}
        call.answer(empty, [f"DBQ UNKNOWN - {words}"], says_standby=False)
        sys.exit(_PLUGIN_STATUS[Severity.UNKNOWN])
    severity = max((checked.severity for checked in checkeds), default=Severity.UNKNOWN)
    queues = [checked.as_json() for checked in checkeds]
    answer = {"status": severity.word, "summary": _summary(checkeds), "queues": queues}
    call.answer(answer, _lines(severity, checkeds), says_standby=False)
    if severity is not Severity.OK:
        sys.exit(_PLUGIN_STATUS[severity] if plugin else 1)


def _checked(call: Call, names: Sequence[str], most: Maximums) -> list[Checked]:
    database = call.database()
    only = chosen(call, database, names)
    sample = take_sample(database, only=only, stuck_after_seconds=stuck_after(call))
    return [
        check(
            snapshot(queue, sample.connection),
            call.thresholds(queue.queue.name),
            most,
            _late(database, queue.queue),
            sample.standby,
        )
        for queue in sample.queues
        if call.schema in (None, queue.queue.schema)
    ]


def _late(database: Database, queue: Queue) -> Late:
    if not has_due_times(database.product, queue):
        return NOT_DUE
    try:
        with database.transaction(
            f"read what is due in {queue.name!r}", read_only=True
        ) as connection:
            limit_transaction(connection, database, database.timeouts.statement_seconds)
            late = overdue(connection, queue, lag=database.lag)
    except ConnectionFailedError:
        raise
    except ConsoleError:
        return Late(applies=True)
    return Late(applies=True, seconds=None if late.messages is None else late.oldest_seconds or 0.0)


def _lines(severity: Severity, checkeds: Sequence[Checked]) -> list[str]:
    data = " ".join(
        figure.perfdata(_label(_name(checked, checkeds)))
        for checked in checkeds
        for figure in checked.figures
    )
    data += "".join(
        f" {checked.lag_perfdata}" for checked in checkeds[:1] if checked.standby is not None
    )
    first = f"DBQ {severity.name} - {_summary(checkeds)}" + (f" | {data}" if data else "")
    return [
        first,
        *(f"{checked.severity.name} {_words(checked, checkeds)}" for checked in checkeds),
    ]


def _summary(checkeds: Sequence[Checked]) -> str:
    """How many queues have a problem, and the most severe one."""
    if not checkeds:
        return "there are no queues here"
    counted = Counter(checked.severity for checked in checkeds)
    wrong = [one for one in (Severity.CRITICAL, Severity.WARNING, Severity.UNKNOWN) if counted[one]]
    queues = numbered(len(checkeds), "queue")
    if not wrong:
        behind = "" if checkeds[0].standby is None else f"; {plain(checkeds[0].standby.words)}"
        return f"{queues} within limits{behind}".replace("|", "¦")
    first = next(checked for checked in checkeds if checked.severity is wrong[0])
    parts = ", ".join(f"{counted[severity]} {severity.word}" for severity in wrong)
    return f"{parts} of {queues}: {_words(first, checkeds)}"


def _words(checked: Checked, among: Sequence[Checked]) -> str:
    # Performance data begins at a "|".
    return f"{plain(_name(checked, among))}: {checked.words}".replace("|", "¦")


def _name(checked: Checked, among: Sequence[Checked]) -> str:
    alone = sum(other.queue == checked.queue for other in among) == 1
    return checked.queue if alone else f"{checked.schema}.{checked.queue}"


def _label(name: str) -> str:
    """As performance data may contain it."""
    return plain(name).replace("'", "''").replace("=", "_").replace("|", "¦")


_MAXIMUMS = tuple(
    Parameter(
        f"max-{limit.name}",
        limit.maximum,
        click.IntRange(min=0) if limit.unit is MESSAGES else DURATION,
        metavar="N" if limit.unit is MESSAGES else "T",
    )
    for limit in LIMITS.values()
    if limit.maximum
)
_PARAMETERS = (
    NAMES,
    *_MAXIMUMS,
    Parameter("max-lag", "A standby that is further behind is CRITICAL.", DURATION, metavar="T"),
    Parameter("plugin", "Exit like a monitoring plugin: 0, 1, 2 or 3.", is_flag=True),
)
COMMAND = Command("check", _run, __doc__, _PARAMETERS, alone=("plugin",))
