"""A claim about a design, and what came of proving it."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from console.catalog import Queue
from console.prove.trial import Trial


class Outcome(StrEnum):
    """What came of a claim."""

    PROVEN = "proven"
    FAILED = "failed"
    NOT_APPLICABLE = "not applicable"


def _nothing(_: Queue) -> str:
    return ""


@dataclass(frozen=True)
class Claim:
    """One sentence about a queue, and how it is put to the test."""

    words: str
    prove: Callable[[Trial], str]
    """Its evidence, in figures. DisprovedError, NotApplicableError; any other error of the console
    disproves it too."""
    lacks: Callable[[Queue], str] = _nothing
    """Why it says nothing of such a queue; empty: it does."""


@dataclass(frozen=True)
class Line:
    """What came of one claim about one design."""

    design: str
    claim: str
    outcome: Outcome
    evidence: str
    """What was seen; of what failed or does not apply, why."""
    seconds: float = 0.0

    def as_json(self) -> dict[str, object]:
        """Part of `prove --json`."""
        return {
            "design": self.design,
            "claim": self.claim,
            "result": self.outcome.value,
            "evidence": self.evidence,
            "seconds": round(self.seconds, 3),
        }
