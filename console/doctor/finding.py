"""A finding: something proven wrong, with its evidence, its cause and what mends it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum
from typing import Protocol

from console.catalog import Queue
from console.engines import Database
from console.rights import Rights


class Severity(IntEnum):
    """In the order in which findings are shown."""

    CRITICAL = 0
    """Messages are stuck, lost or about to be."""
    WARNING = 1
    NOTE = 2
    """Worth knowing; nothing is unhealthy."""

    @property
    def word(self) -> str:
        """As `--json` has it."""
        return self.name.lower()


@dataclass(frozen=True)
class Code:
    """One kind of finding. `name` is stable: tickets and scripts are written around it."""

    name: str
    severity: Severity
    meaning: str
    """One line for --help and README."""


class Repair(Protocol):
    """What mends a finding, through the actions: planned, confirmed, audited."""

    @property
    def summary(self) -> str:
        """What it does: `park 21 numbers`."""
        ...

    @property
    def command(self) -> str:
        """The same on the command line, for who wants to do it himself; empty: doctor --fix."""
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
    def wants_name(self) -> bool:
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
    """One thing that is wrong with one queue."""

    code: Code
    summary: str
    """One line: `21 orphans, 23 holes since the crash at 01:58:11`."""
    evidence: Mapping[str, object] = field(default_factory=dict)
    """What proves it: numbers, ids, sessions, times. Never a payload."""
    cause: str = ""
    consequence: str = ""
    since: datetime | None = None
    repair: Repair | None = None

    def as_json(self) -> dict[str, object]:
        """The stable object of `doctor --json`."""
        repair = None
        if self.repair is not None:
            repair = {
                "summary": self.repair.summary,
                "command": self.repair.command,
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
        }


@dataclass(frozen=True)
class Diagnosis:
    """What was found at one queue. `unseen`: what could not be looked at, and why."""

    queue: Queue
    findings: tuple[Finding, ...]
    unseen: tuple[str, ...] = ()

    @property
    def healthy(self) -> bool:
        """All clear, or notes only; and everything was looked at."""
        grave = [f for f in self.findings if f.code.severity < Severity.NOTE]
        return not grave and not self.unseen

    @property
    def verdict(self) -> str:
        """`all clear` is only said after a look at everything."""
        grave = [f.code.severity for f in self.findings if f.code.severity < Severity.NOTE]
        if grave:
            return min(grave).word
        if self.unseen:
            return "unknown"
        return "notes" if self.findings else "all clear"

    def as_json(self) -> dict[str, object]:
        """The stable object of `doctor --json`."""
        return {
            "queue": self.queue.name,
            "schema": self.queue.schema,
            "design": self.queue.design.name,
            "verdict": self.verdict,
            "findings": [finding.as_json() for finding in self.findings],
            "unseen": list(self.unseen),
        }
