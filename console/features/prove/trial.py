"""A claim about a design, and the scratch queue to prove it on."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import Connection

from console import sql
from console.actions import end_session
from console.actions.pop import PoppedMessage, complete, pop_many
from console.actions.push import Payload, push, push_many
from console.actions.smoke_result import number_of, payload_of
from console.catalog import Queue, audit
from console.designs import Flow, Order
from console.doctor.diagnose import diagnose
from console.doctor.finding import Diagnosis
from console.doctor.repairs import allowed_repairs, try_repair
from console.doctor.stopped_consumers import ConsumptionHistory
from console.engines import Database, retry_transient
from console.errors import ConnectionFailedError, ConsoleError, interrupt_cause
from console.formats import numbered
from console.monitor.limits import DEFAULTS, Thresholds
from console.monitor.rates import StatusRow
from console.monitor.sample import take_sample
from console.rights import Rights
from console.verbs.verb import Target

_POPS_OF = 7
_UNORDERED = {Order.NONE, Order.SESSIONS}


class DisprovedError(Exception):
    """The claim does not hold; the message is what was seen instead."""


class NotApplicableError(Exception):
    """Why the claim cannot be proven or disproven here."""


def require(holds: object, otherwise: str) -> None:
    if not holds:
        raise DisprovedError(otherwise)


def one_line(error: ConsoleError) -> str:
    """What could not be done and why, as evidence."""
    return " ".join(f"{error.what} {error.why}".split())


def let_interrupts_through(error: Exception) -> None:
    """A claim that was interrupted is not disproven."""
    if (interrupt := interrupt_cause(error)) is not None:
        raise interrupt


class Trial:
    """One scratch queue. Its messages are numbered from 0 in the order of their pushes.

    If a ring has subscribers, `queue` is the view of the one that pops; the others have to get the
    same messages.
    """

    def __init__(self, database: Database, queue: Queue) -> None:
        self.database = database
        self.installed = queue
        self.queue = queue.views[0]
        self._next = 0

    def with_each_subscriber(self, prove: "Callable[[Trial], str]") -> str:
        """The evidence with each subscriber in turn as the one that pops."""
        evidence = {}
        for view in self.installed.views:
            self.queue = view
            try:
                evidence[view.subscriber] = prove(self)
            except DisprovedError as seen:
                raise DisprovedError(f"{view.subscriber}: {seen}".removeprefix(": ")) from seen
        return "; ".join(f"{name}: {seen}".removeprefix(": ") for name, seen in evidence.items())

    @property
    def draws_numbers(self) -> bool:
        """Whether a rolled-back call consumes a number: in a ring."""
        return self.queue.design.flow is Flow.NUMBERS

    @property
    def pushed(self) -> int:
        """The number of the next message."""
        return self._next

    def payloads(self, count: int) -> list[Payload]:
        """Of the next messages."""
        first, self._next = self._next, self._next + count
        return [payload_of(number, self.queue) for number in range(first, first + count)]

    def push(self, count: int) -> list[int]:
        """Push messages in one transaction; their numbers."""
        first = self._next
        with self.database.transaction("push") as connection:
            ids = push_many(connection, self.queue, self.payloads(count))
        stored = len(ids) - ids.count(None)
        require(stored == count, f"of {numbered(count, 'message')} pushed {stored} were stored")
        return list(range(first, first + count))

    def push_one(self, connection: Connection) -> str | None:
        """Push one message in the caller's transaction; its id."""
        (payload,) = self.payloads(1)
        return push(connection, self.queue, payload)

    def pop(self, n: int, by: Queue | None = None) -> list[PoppedMessage]:
        """At most `n`, in one transaction. `by`: another subscriber's view."""

        def once() -> list[PoppedMessage]:
            with self.database.transaction("pop") as connection:
                return pop_many(connection, by or self.queue, n, "prove")

        return retry_transient(once)

    def numbers(self, messages: Sequence[PoppedMessage]) -> list[int]:
        """Their numbers. DisprovedError if a payload is not what was pushed."""
        found = [number_of(message.payload, self.queue) for message in messages]
        require(-1 not in found, f"{numbered(found.count(-1), 'message')} came damaged")
        return found

    def finish(self, messages: Sequence[PoppedMessage], by: Queue | None = None) -> None:
        """Complete them, if the design keeps popped messages."""
        if not self.queue.finishes:
            return
        with self.database.transaction("complete") as connection:
            acted = [complete(connection, by or self.queue, message) for message in messages]
        require(all(acted), f"{numbered(acted.count(False), 'claim')} could not be completed")

    def drain(self, by: Queue | None = None) -> list[PoppedMessage]:
        """Pop and finish until nothing comes any more."""
        came: list[PoppedMessage] = []
        while popped := self.pop(_POPS_OF, by):
            self.finish(popped, by)
            came += popped
            # A queue that returns messages twice would never end.
            require(len(came) <= 2 * self._next, f"{len(came)} came, of {self._next} ever pushed")
        return came

    def require_drained(self, expected: Sequence[int]) -> list[PoppedMessage]:
        """All messages left: they have to be these, each once, in the design's order."""
        came = self.drain()
        self.require_these(self.numbers(came), expected)
        self.require_others_get(expected)
        return came

    def require_others_get(self, expected: Sequence[int]) -> None:
        """Each other subscriber gets these, each once, whatever happened to this one's pops."""
        for view in self.installed.views:
            if view.subscriber != self.queue.subscriber:
                try:
                    self.require_these(self.numbers(self.drain(view)), expected)
                except DisprovedError as seen:
                    raise DisprovedError(f"beside it {view.subscriber}: {seen}") from seen

    def require_these(self, came: Sequence[int], expected: Sequence[int]) -> None:
        """DisprovedError if they are others, or not in the promised order."""
        lost, foreign = set(expected) - set(came), set(came) - set(expected)
        doubled = len(came) - len(set(came))
        require(
            not (lost or foreign or doubled),
            f"{len(lost)} lost, {doubled} doubled, {len(foreign)} that should not be there, "
            f"of {numbered(len(expected), 'message')}",
        )
        order = self.queue.design.order_with(self.queue.options)
        if order in _UNORDERED:
            return
        ordered = sorted(expected, reverse=order is Order.LIFO)
        require(list(came) == ordered, f"came in the order {list(came)}, not {ordered}")

    def figures(self) -> StatusRow:
        """DisprovedError if they cannot be read."""
        (seen,) = take_sample(self.database, only=[self.queue]).queues
        if seen.row is None:
            raise DisprovedError(f"its figures cannot be read: {seen.problem}")
        return seen.row

    def diagnosis(self, thresholds: Thresholds = DEFAULTS) -> Diagnosis:
        """Without a finding on the missing consumers."""
        (found,) = diagnose(
            self.database,
            [self.installed],
            thresholds_of=lambda _: thresholds,
            consumption=ConsumptionHistory(3600.0, waits=False),
        )
        return found

    def require_repaired(self, code: str, thresholds: Thresholds = DEFAULTS) -> tuple[str, str]:
        """The summary of the finding with this code, and what its repair did; it has to be gone
        afterwards."""
        diagnosis = self.diagnosis(thresholds)
        summary = next(
            (finding.summary for finding in diagnosis.findings if finding.code.name == code), None
        )
        if summary is None:
            codes = ", ".join(finding.code.name for finding in diagnosis.findings) or "nothing"
            unseen = f"; not examined: {'; '.join(diagnosis.unseen)}" if diagnosis.unseen else ""
            raise DisprovedError(f"the doctor found {codes}, not {code}{unseen}")
        repairs = allowed_repairs(diagnosis, Rights.ADMIN, {code})
        require(repairs, f"{code} has no repair")
        target = Target(self.database, self.installed, Rights.ADMIN, lambda _: thresholds)
        results = [try_repair(repair, target) for repair in repairs]
        lines = "; ".join(line for result in results for line in result.lines)
        failed = [result for result in results if result.outcome is audit.Outcome.FAILED]
        require(not failed, f"{code} was not repaired: {lines}")
        left = [finding.code.name for finding in self.diagnosis(thresholds).findings]
        require(code not in left, f"{code} is still there after its repair: {lines}")
        return summary, lines

    @contextmanager
    def killed(
        self, committed: Callable[[Connection], object] = lambda _: None
    ) -> Iterator[Connection]:
        """A transaction whose session is killed at the end of the block, as `end-session` does.

        `committed`: what the session does and commits before.
        """
        with self.dying(committed) as connection:
            session = self.session(connection)
            yield connection
            held = end_session.find(self.database, self.queue, session)
            ended = end_session.end_session(self.database, held)
            there = f"session {session} was told to end and is still there"
            require(ended.data["ended"], there)

    @contextmanager
    def dying(
        self, committed: Callable[[Connection], object] = lambda _: None
    ) -> Iterator[Connection]:
        """A transaction whose session must not outlive the block."""
        doing = "call in a session that is killed"
        try:
            with self.database.session(doing) as session:
                with session.transaction(doing) as connection:
                    committed(connection)
                with session.transaction(doing) as connection:
                    yield connection
                    self.session(connection)
        except ConnectionFailedError:
            return
        raise DisprovedError("a killed session went on")

    @staticmethod
    def session(connection: Connection) -> str:
        return sql.value(connection, str, "prove.session")


class Outcome(StrEnum):
    PROVEN = "proven"
    FAILED = "failed"
    NOT_ANSWERED = "not answered"
    """A question about the server only: an error or a time-out came before the answer."""
    NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True)
class Claim:
    """One sentence about a queue, and its proof."""

    text: str
    prove: Callable[[Trial], str]
    """Returns its evidence, in figures. DisprovedError, NotApplicableError; any other ConsoleError
    disproves it too."""
    lacks: Callable[[Queue], str] = lambda _: ""
    """Why it does not apply to such a queue; empty: it does."""


@dataclass(frozen=True)
class Line:
    """The result of one claim about one design."""

    design: str
    """Or the database in which a question about the server was asked."""
    claim: str
    outcome: Outcome
    evidence: str
    """What was seen, or why it failed or does not apply."""
    seconds: float = 0.0
    code: str = ""
    """Of a question about the server; with what leans on it, and what it would mean if false."""
    leans: str = ""
    otherwise: str = ""

    def as_json(self) -> dict[str, object]:
        """Part of `prove --json`."""
        return {
            "design": self.design,
            "claim": self.claim,
            "result": self.outcome.value,
            "evidence": self.evidence,
            "seconds": round(self.seconds, 3),
            **(
                {"code": self.code, "leans": self.leans, "if_false": self.otherwise}
                if self.code
                else {}
            ),
        }
