"""A finding: something proven wrong, with its evidence, its cause and what repairs it."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Protocol

from console.catalog import Queue
from console.decisions import Decision
from console.engines import Database
from console.monitor.consumers import Consumers
from console.monitor.limits import Severity
from console.monitor.recording.forecast import Forecast
from console.monitor.snapshot import QueueSnapshot
from console.rights import Rights

SEVERITIES = (Severity.CRITICAL, Severity.WARNING, Severity.NOTE)
"""Of findings, in the order in which they are shown."""


DEFAULT_JUDGEMENT = "no repair is safe without a decision: its evidence says where to look"


@dataclass(frozen=True)
class Code:
    """One kind of finding. `name` is stable: tickets and scripts are written around it."""

    name: str
    severity: Severity
    meaning: str
    """One line, for --help and --codes."""
    judgement: str = DEFAULT_JUDGEMENT
    """Of a finding without a repair: why somebody has to judge, and what to do."""
    repair: str = ""
    """What repairs it, where anything does."""

    @property
    def advice(self) -> str:
        return "" if self.repair and self.judgement == DEFAULT_JUDGEMENT else self.judgement

    def as_json(self) -> dict[str, object]:
        return {
            "code": self.name,
            "severity": self.severity.word,
            "meaning": self.meaning,
            "repair": self.repair or None,
            "judgement": self.advice or None,
        }

    @property
    def lines(self) -> list[str]:
        judgement = "otherwise" if self.repair else "needs your judgement"
        return [
            f"{self.name}: {self.severity.word}",
            *_wrapped(self.meaning),
            *(_wrapped(f"repair: {self.repair}") if self.repair else ()),
            *(_wrapped(f"{judgement}: {self.advice}") if self.advice else ()),
        ]


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 78, initial_indent="  ", subsequent_indent="    ")


class Repair(Protocol):
    @property
    def summary(self) -> str:
        """What it does: `park 21 numbers`."""
        ...

    @property
    def command(self) -> str:
        """The verb that does the same on the command line; empty: only the doctor does it."""
        ...

    @property
    def unattended(self) -> bool:
        """Whether `--fix` runs it: it needs no lock that stops traffic and no judgement."""
        ...

    @property
    def rights(self) -> Rights:
        """What the connection must be allowed."""
        ...

    @property
    def requires_name(self) -> bool:
        """Whether the queue's name has to be typed for it."""
        ...

    def plan(self, database: Database) -> Sequence[str]:
        """What it would do, in words; changes nothing."""
        ...

    def run(self, database: Database) -> Sequence[str]:
        """Do it; what it did, in words. Raises ConsoleError."""
        ...


@dataclass(frozen=True)
class Finding:
    code: Code
    summary: str
    """One line: `21 orphans, 23 holes since the crash at 01:58:11`."""
    evidence: Mapping[str, object] = field(default_factory=dict)
    """What proves it: numbers, ids, sessions, times. Never a payload."""
    cause: str = ""
    consequence: str = ""
    since: datetime | None = None
    """By the database's clock, as all times are that it keeps."""
    repair: Repair | None = None
    for_seconds: float | None = None
    """How long it has been so, where no time was kept: `with_since` makes `since` of it."""

    def with_since(self, now: datetime) -> "Finding":
        """With since when it has been so; `now` is by the database's clock."""
        if self.since is not None or self.for_seconds is None:
            return self
        return replace(self, since=now - timedelta(seconds=self.for_seconds))

    judgement: str = ""
    """As of its code, where more can be said of this one: a command, or the SQL to judge by."""
    command: str = ""
    """What runs its repair on the command line."""
    estimated: tuple[str, ...] = ()
    """Names of evidence that is an estimate."""
    silenced: Decision | None = None
    """Who has silenced or acknowledged it: then it is shown, and is no problem."""

    @property
    def public_summary(self) -> str:
        """Its summary without what it quotes of an error, which may hold parts of a payload: for
        what leaves the console, or is kept."""
        if not self.evidence.get("first_error"):
            return self.summary
        return self.summary.partition("; the first:")[0]

    @property
    def subscriber(self) -> str:
        """Of a ring that has some: whose finding it is; empty: the whole queue's."""
        return str(self.evidence.get("subscriber") or "")

    @property
    def subject(self) -> str:
        """Of several of its code: the figure whose limit it is about, or the subscriber."""
        return str(self.evidence.get("figure") or self.subscriber)

    @property
    def effective_severity(self) -> Severity:
        """How grave it is to whoever asks whether all is well."""
        return self.code.severity if self.silenced is None else Severity.NOTE

    @property
    def severity_text(self) -> str:
        """Its severity, for a reader: `warning`, `warning, silenced`."""
        if self.silenced is None:
            return self.code.severity.word
        return f"{self.code.severity.word}, {self.silenced.done}"

    @property
    def judgement_text(self) -> str:
        """What it takes where there is no repair; nothing where there is one."""
        if self.repair is not None:
            return ""
        return f"needs your judgement: {self.judgement or self.code.judgement}"

    def for_subscriber(self, name: str) -> "Finding":
        """It is about what one subscriber of a ring has; empty: the same."""
        if not name:
            return self
        evidence = {"subscriber": name, **self.evidence}
        return replace(self, summary=f"{name}: {self.summary}", evidence=evidence)

    @property
    def evidence_lines(self) -> list[str]:
        """The evidence for a reader, several lines for a list of things; `≈` is an estimate."""
        return [
            line
            for name, value in self.evidence.items()
            for line in _lines(name, _estimate(value) if name in self.estimated else value)
        ]

    def as_json(self) -> dict[str, object]:
        repair = None
        if self.repair is not None:
            repair = {
                "summary": self.repair.summary,
                "command": self.command or self.repair.command,
                "unattended": self.repair.unattended,
            }
        return {
            "code": self.code.name,
            "severity": self.code.severity.word,
            "since": None if self.since is None else self.since.isoformat(),
            "summary": self.summary,
            "evidence": dict(self.evidence),
            "cause": self.cause,
            "consequence": self.consequence,
            "repair": repair,
            "judgement": self.judgement_text,
            "estimated": list(self.estimated),
            "silenced": None if self.silenced is None else self.silenced.as_json(),
        }


_MOST = 20
"""Lines of one piece of evidence; the doctor keeps it short itself."""


def _lines(name: str, value: object) -> list[str]:
    if isinstance(value, Sequence) and not isinstance(value, str):
        if any(isinstance(one, Mapping) for one in value):
            lines = [f"{name}: {_flat(one)}" for one in value[:_MOST]]
            left = len(value) - len(lines)
            return [*lines, f"and {left} more"] if left else lines
        return [f"{name}: {_flat(value)}"]
    return f"{name}: {_flat(value)}".splitlines()[:_MOST]


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


def _estimate(value: object) -> object:
    if isinstance(value, Mapping):
        return {name: _estimate(one) for name, one in value.items()}
    return f"≈{value:,}" if isinstance(value, (int, float)) else value


@dataclass(frozen=True)
class Diagnosis:
    """What was found at one queue. `unseen`: what could not be examined, and why."""

    queue: Queue
    findings: tuple[Finding, ...]
    unseen: tuple[str, ...] = ()
    figures: QueueSnapshot | None = None
    """Those by which it was judged."""
    clock_ahead: timedelta = timedelta()
    """How far the database's clock, by which findings say since when, is ahead of ours."""
    finished_decisions: tuple[tuple[Decision, str], ...] = ()
    """Acknowledgements that end by this, and why: `ended`, `worsened`."""
    unproven: frozenset[str] = frozenset()
    """Codes of which nobody can say that there is no such finding."""
    consumers: Consumers | None = field(default=None, compare=False)
    """Who popped and pushed then; None: it could not be seen."""
    messages_late: bool = False
    """Whether messages waited for too long."""
    forecast: Forecast | None = field(default=None, compare=False)
    """What to expect of its hours; None: nobody knows."""

    @property
    def severity(self) -> Severity:
        """Of its gravest finding that nobody has silenced; unknown, where none is grave and not
        everything was seen."""
        unseen = [Severity.UNKNOWN] if self.unseen else []
        return max(
            (*(one.effective_severity for one in self.findings), *unseen), default=Severity.OK
        )

    @property
    def healthy(self) -> bool:
        """All clear, or notes only; and everything was examined."""
        return self.severity <= Severity.NOTE

    @property
    def verdict(self) -> str:
        """`all clear` is only said after everything was examined."""
        silenced = any(one.silenced is not None for one in self.findings)
        notes = "silenced" if silenced else "notes"
        words = {Severity.OK: "all clear", Severity.NOTE: notes}
        return words.get(self.severity, self.severity.word)

    def as_json(self) -> dict[str, object]:
        return {
            "queue": self.queue.name,
            "schema": self.queue.schema,
            "design": self.queue.design.name,
            "verdict": self.verdict,
            "findings": [finding.as_json() for finding in self.findings],
            "unseen": list(self.unseen),
        }
