"""A finding: something proven wrong, with its evidence, cause and repair."""

import textwrap
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Protocol

from console.catalog import Queue
from console.catalog.decisions import Decision
from console.formats import whole_seconds
from console.monitor.consumers import Consumers
from console.monitor.limits import Severity
from console.monitor.past import QueueForecast
from console.monitor.snapshot import QueueSnapshot
from console.rights import Rights

if TYPE_CHECKING:
    from console.plan import Plan
    from console.verbs.verb import Target

SEVERITIES = (Severity.CRITICAL, Severity.WARNING, Severity.NOTE)
"""Of findings, in display order."""


DEFAULT_JUDGEMENT = "no repair is safe without a decision: its evidence says where to look"


@dataclass(frozen=True)
class Code:
    """A type of finding. `name` is stable: tickets and scripts rely on it."""

    name: str
    severity: Severity
    meaning: str
    """One line, for --help and --codes."""
    judgement: str = DEFAULT_JUDGEMENT
    """If a finding has no repair: why it takes a human decision, and what to do."""
    repair: str = ""
    """What repairs it, if anything does."""

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
    """A verb and its values, or what only `doctor --fix` does."""

    @property
    def queue(self) -> Queue: ...

    @property
    def verb(self) -> str:
        """Its form has the plan."""
        ...

    @property
    def texts(self) -> Mapping[str, str]:
        """The fields of that form, unless only the doctor has the repair: see `repair_texts`."""
        ...

    @property
    def summary(self) -> str:
        """What it does: `park 21 numbers`."""
        ...

    @property
    def command(self) -> str:
        """The verb on the command line; empty: only the doctor can."""
        ...

    @property
    def unattended(self) -> bool:
        """Whether `--fix` runs it: it takes no lock that stops traffic, and no judgement."""
        ...

    @property
    def rights(self) -> Rights: ...

    def plan(self, target: "Target") -> "Plan":
        """What it would do to its queue. Raises ConsoleError."""
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
    """By the database's clock."""
    repair: Repair | None = None
    for_seconds: float | None = None
    """How long it has lasted, if `since` is not known: see `with_since`."""
    judgement: str = ""
    """Instead of its code's: more precise, with a command or the SQL to judge by."""
    command: str = ""
    """Runs its repair on the command line."""
    estimated: tuple[str, ...] = ()
    """Names of evidence that is an estimate."""
    silenced: Decision | None = None
    """The decision that silences it. It is shown, but counts as a note."""
    runbook: str = ""
    """What its operators have written down to do about it: an address, or a text."""
    nullable: tuple[str, ...] = ()
    """Names of evidence whose null is known to be none; of other evidence it is unknown."""

    def with_since(self, now: datetime) -> "Finding":
        """With its `since`, if that follows from `for_seconds`; `now` by the database's clock."""
        if self.since is not None or self.for_seconds is None:
            return self
        with suppress(OverflowError):  # since before the year 1
            return replace(self, since=now - timedelta(seconds=self.for_seconds))
        return self

    @property
    def repair_texts(self) -> Mapping[str, str]:
        """The fields of its repair's form."""
        if self.repair is None or self.repair.command:
            return {} if self.repair is None else self.repair.texts
        return {"code": self.code.name, "subscriber": self.subscriber}

    @property
    def public_summary(self) -> str:
        """Its summary without the error text that it quotes, which may hold parts of a payload:
        for whatever leaves the console or is stored."""
        if not self.evidence.get("first_error"):
            return self.summary
        return self.summary.partition("; the first:")[0]

    @property
    def subscriber(self) -> str:
        """Of a ring with subscribers; empty: the finding is about the whole queue."""
        return str(self.evidence.get("subscriber") or "")

    @property
    def subject(self) -> str:
        """What tells it from others of its code: a figure with a limit, a time, a subscriber."""
        evidence = self.evidence
        return str(evidence.get("figure") or evidence.get("time") or self.subscriber)

    @property
    def effective_severity(self) -> Severity:
        return self.code.severity if self.silenced is None else Severity.NOTE

    @property
    def severity_text(self) -> str:
        """`warning`, or `warning, silenced`."""
        if self.silenced is None:
            return self.code.severity.word
        return f"{self.code.severity.word}, {self.silenced.state}"

    @property
    def judgement_text(self) -> str:
        """What it takes if there is no repair; empty if there is one."""
        if self.repair is not None:
            return ""
        return f"needs your judgement: {self.judgement or self.code.judgement}"

    def for_subscriber(self, name: str) -> "Finding":
        """Named after a ring's subscriber; unchanged if `name` is empty."""
        if not name:
            return self
        evidence = {"subscriber": name, **self.evidence}
        return replace(self, summary=f"{name}: {self.summary}", evidence=evidence)

    @property
    def evidence_lines(self) -> list[str]:
        """The evidence as text, with several lines for a list; `≈` marks an estimate."""
        return [
            line
            for name, value in self.evidence.items()
            for line in _lines(name, self._shown(name, value))
        ]

    def _shown(self, name: str, value: object) -> object:
        if value is None and name in self.nullable:
            return "none"
        return _estimate(value) if name in self.estimated else value

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
            "runbook": self.runbook or None,
            "estimated": list(self.estimated),
            "silenced": None if self.silenced is None else self.silenced.as_json(),
        }


_MOST_LINES = 20
"""Of one piece of evidence."""


def _lines(name: str, value: object) -> list[str]:
    if isinstance(value, Sequence) and not isinstance(value, str):
        if any(isinstance(one, Mapping) for one in value):
            lines = [f"{name}: {_flat(one)}" for one in value[:_MOST_LINES]]
            left = len(value) - len(lines)
            return [*lines, f"and {left} more"] if left else lines
        return [f"{name}: {_flat(value)}"]
    return f"{name}: {_flat(value)}".splitlines()[:_MOST_LINES]


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


def countdown(seconds: float, of: str = "") -> str:
    """`consumption: asked again in 28 s`; `of`: whose."""
    when = f"in {whole_seconds(seconds)}" if seconds >= 1 else "now"
    return f"consumption{of and f' of {of}'}: asked again {when}"


@dataclass(frozen=True)
class Diagnosis:
    """Everything found about one queue. `unseen`: what could not be checked, and why."""

    queue: Queue
    findings: tuple[Finding, ...]
    unseen: tuple[str, ...] = ()
    figures: QueueSnapshot | None = None
    """By which it was judged."""
    clock_ahead: timedelta = timedelta()
    """How far the database's clock is ahead of ours."""
    finished_decisions: tuple[tuple[Decision, str], ...] = ()
    """Acknowledgements that end with this, and why: `ended`, `worsened`."""
    unproven: frozenset[str] = frozenset()
    """Codes whose checks did not complete: there may be such a finding."""
    consumers: Consumers | None = field(default=None, compare=False)
    """Also producers; None: they could not be seen."""
    messages_late: bool = False
    """Whether messages waited for too long."""
    forecast: QueueForecast | None = field(default=None, compare=False)
    pending: str = ""
    """What of `unseen` the next examination can tell."""

    @property
    def severity(self) -> Severity:
        """Of its most severe finding, silenced ones aside; unknown if not everything was seen and
        nothing worse was found."""
        unseen = [Severity.UNKNOWN] if self.unseen else []
        return max(
            (*(finding.effective_severity for finding in self.findings), *unseen),
            default=Severity.OK,
        )

    @property
    def healthy(self) -> bool:
        """All clear, or notes only, with everything examined."""
        return self.severity <= Severity.NOTE

    @property
    def verdict(self) -> str:
        """`all clear` only if everything was examined."""
        silenced = any(finding.silenced is not None for finding in self.findings)
        notes = "silenced" if silenced else "notes"
        texts = {Severity.OK: "all clear", Severity.NOTE: notes}
        return texts.get(self.severity, self.severity.word)

    def as_json(self) -> dict[str, object]:
        return {
            "queue": self.queue.name,
            "schema": self.queue.schema,
            "design": self.queue.design.name,
            "verdict": self.verdict,
            "findings": [finding.as_json() for finding in self.findings],
            "unseen": list(self.unseen),
        }
