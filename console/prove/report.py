"""What was proven and what was not, as Markdown and as JSON."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata

from console.engines import Database, Timeouts
from console.formats import plain
from console.prove.claim import Line, Outcome
from console.prove.run import NOT_TRIED, Proof

TIMEOUTS = Timeouts(statement_seconds=60.0, lock_seconds=30.0)
"""Of a call: one that waits for longer fails, and its claim with it."""

_HEAD = ("| claim | result | evidence |", "| --- | --- | --- |")


@dataclass(frozen=True)
class Report:
    """Of one run."""

    connection: str
    server: str
    """Product and version."""
    schema: str
    began: datetime
    seconds: float
    lines: Sequence[Line]

    @property
    def complete(self) -> bool:
        """Whether there was time for every claim."""
        return all(line.evidence != NOT_TRIED for line in self.lines)

    @property
    def ok(self) -> bool:
        """Nothing failed, and everything was tried that can be."""
        return self.complete and not self.counts[Outcome.FAILED]

    @property
    def counts(self) -> Counter[Outcome]:
        """Lines by their outcome."""
        return Counter(line.outcome for line in self.lines)

    @property
    def summary(self) -> str:
        """One line."""
        counts = ", ".join(f"{self.counts[one]} {one.value}" for one in Outcome)
        late = "" if self.complete else f"; {NOT_TRIED}"
        return f"{counts}, in {self.seconds:.0f} s{late}"

    def as_json(self) -> dict[str, object]:
        """The stable object of `prove --json`."""
        return {
            "console": _version(),
            "connection": self.connection,
            "server": self.server,
            "schema": self.schema,
            "began": self.began.isoformat(),
            "seconds": round(self.seconds, 3),
            "ok": self.ok,
            "complete": self.complete,
            **{one.name.lower(): self.counts[one] for one in Outcome},
            "claims": [line.as_json() for line in self.lines],
        }

    @property
    def markdown(self) -> list[str]:
        """What failed first; then design by design."""
        failed = [line for line in self.lines if line.outcome is Outcome.FAILED]
        designs = dict.fromkeys(line.design for line in self.lines)
        found = [
            f"# What dbq-console {_version()} proves on {plain(self.server)}",
            "",
            f"- {self.summary}",
            f"- {plain(self.connection)}, schema {plain(self.schema)}, "
            f"{self.began:%Y-%m-%d %H:%M:%S} UTC",
            "- on scratch queues, which are gone; no other queue was touched",
        ]
        if failed:
            found += ["", "## Failed", ""]
            found += [f"- **{one.design}**: {one.claim}: {_cell(one.evidence)}" for one in failed]
        for design in designs:
            found += ["", f"## {design}", "", *_HEAD]
            found += [
                f"| {line.claim} | {_shown(line.outcome)} | {_cell(line.evidence)} |"
                for line in self.lines
                if line.design == design
            ]
        return found


def proven(database: Database, schema: str, designs: str, tell: Callable[[str], None]) -> Report:
    """Prove it all; `tell` hears how far it is. RefusedError where this login may not install."""
    database.timeouts = TIMEOUTS  # before its first connection
    began, started = datetime.now(UTC), time.monotonic()
    lines: list[Line] = []
    for line in Proof(database, schema, tell).run(designs):
        tell(f"{line.design}: {line.claim}: {line.outcome.value}")
        lines.append(line)
    return Report(
        database.label,
        f"{database.product.title} {database.capabilities.server_version}",
        schema,
        began,
        time.monotonic() - started,
        lines,
    )


def _shown(outcome: Outcome) -> str:
    return f"**{outcome.value}**" if outcome is Outcome.FAILED else outcome.value


def _cell(text: str) -> str:
    return plain(" ".join(text.split())).replace("|", "\\|")


def _version() -> str:
    return metadata.version("dbq-console")
