"""A question about the server: what is asked, what leans on the answer, and how it is asked.

Unlike a claim about a design, it may stay without an answer: a refusal, a time-out, a lost
connection say nothing about it, and the next question is asked.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from console.engines import time_limit
from console.errors import BusyError, ConnectionFailedError, ConsoleError, RefusedError
from console.features.prove.site import Site
from console.features.prove.trial import (
    DisprovedError,
    Line,
    NotApplicableError,
    Outcome,
    let_interrupts_through,
    one_line,
)

_MOST_SECONDS = 45.0


@dataclass(frozen=True)
class Question:
    code: str
    """Short and stable: `queries/mssql/README.md` and `prove --claims` name it."""
    claim: str
    leans: str
    """What of the console leans on it."""
    otherwise: str
    """What it would mean if it is false."""
    ask: Callable[[Site], str]
    """Returns what was seen. DisprovedError, NotApplicableError; any other error: no answer."""
    engines: tuple[str, ...] = ("mssql",)
    everywhere: bool = True
    """In each of the proof's databases; else in the first, whose settings do not matter to it."""
    most_seconds: float = _MOST_SECONDS


def try_question(question: Question, site: Site, most_seconds: float | None = None) -> Line:
    """`most_seconds`: less than the question's own, where less is left of the proof."""
    began = time.monotonic()
    seconds = min(question.most_seconds, most_seconds or question.most_seconds)

    def line(outcome: Outcome, evidence: str) -> Line:
        return Line(
            site.label,
            question.claim,
            outcome,
            evidence,
            time.monotonic() - began,
            code=question.code,
            leans=question.leans,
            otherwise=question.otherwise,
        )

    with site.question():
        try:
            with time_limit(seconds):
                return line(Outcome.PROVEN, question.ask(site))
        except NotApplicableError as reason:
            return line(Outcome.NOT_APPLICABLE, str(reason))
        except DisprovedError as seen:
            let_interrupts_through(seen)
            return line(Outcome.FAILED, str(seen))
        except ConsoleError as error:
            let_interrupts_through(error)
            return line(Outcome.NOT_ANSWERED, one_line(error))
        except (TypeError, ValueError, LookupError) as error:
            # A server that answers with other columns or rows than were asked for.
            return line(Outcome.NOT_ANSWERED, f"{type(error).__name__}: {error}")


@contextmanager
def an_error_disproves(what: str) -> Iterator[None]:
    """Of the statement itself: what a missing right, a lock or a lost connection stops is no
    answer."""
    try:
        yield
    except (ConnectionFailedError, RefusedError):
        raise
    except ConsoleError as error:
        raise DisprovedError(f"{what} fails: {error.why or error.what}") from error


@contextmanager
def waiting_disproves(what: str) -> Iterator[None]:
    try:
        yield
    except BusyError as error:
        raise DisprovedError(f"{what} waits: {error.why or error.what}") from error
