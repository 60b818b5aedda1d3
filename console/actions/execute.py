"""Doing what a plan says: in batches, each its own transaction, checked, counted and audited.

It can be paused, stopped and cut off at any point: what was done is done and in the audit, the
rest is untouched, and the same action planned again finishes it.
"""

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, repeat

from console.actions import BATCH, MOST_BATCH
from console.actions.canary import CanaryResults, CanaryTracker, CanaryVerdict
from console.actions.plan import Plan, require_possible
from console.actions.rows import ErrorSelection, MessageAction, Selection, SelectionCriteria
from console.audit import ActionRecord, Ledger, Outcome
from console.engines import Database, Session, patience, retry_transient
from console.errors import (
    BusyError,
    ConnectionFailedError,
    ConsoleError,
    InDoubtError,
    UsageError,
)
from console.formats import duration, numbered
from console.monitor.message import Message

CANARY = (1, 10)
"""The first batches of an action that tries itself out."""
CANARY_WAIT_SECONDS = 30.0
_LOOK_PAUSES = (0.1, 0.2, 0.5, 1.0)
"""Between two reads of what has become of them; the last one again and again."""
_BUSY_PAUSES = (0.1, 0.5, 2.0, 5.0)
_LOST_PAUSES = (0.0, 1.0, 3.0, 6.0)
"""Before each try to look how far an action came whose connection was lost..."""
_LOST_SECONDS = 30.0
"""... and for all of them together."""


@dataclass(frozen=True)
class Batching:
    """How fast. `rate`: messages a second, at most; None: as they come."""

    batch: int = BATCH
    rate: float | None = None
    canary: bool = False
    canary_wait: float = CANARY_WAIT_SECONDS
    """So long its messages are tracker, where a result can be waited for."""
    canary_share: float = 0.0
    """So many of them may fail, of 1."""

    def __post_init__(self) -> None:
        if not 1 <= self.batch <= MOST_BATCH:
            raise UsageError(f"A batch is 1 to {MOST_BATCH:,} messages, not {self.batch:,}.")
        if self.rate is not None and self.rate <= 0:
            raise UsageError("A rate is more than 0 messages a second.")
        if not 0 <= self.canary_share < 1:
            raise UsageError("The share of a canary that may fail is 0 or more, and below 1.")

    def sizes(self, done: int) -> int:
        """How many the next batch may have after so many that did something."""
        size = CANARY[done] if self.canary and done < len(CANARY) else self.batch
        return size if self.rate is None else max(1, min(size, round(self.rate)))


class Control:
    """What an operator says while it runs, from any thread."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._go = threading.Event()
        self._go.set()

    def pause(self) -> None:
        """After the batch that runs now, until `resume`."""
        self._go.clear()

    def resume(self) -> None:
        self._go.set()

    def stop(self) -> None:
        """After the batch that runs now; a paused action too."""
        self._stop.set()
        self._go.set()

    @property
    def stopped(self) -> bool:
        return self._stop.is_set()

    @property
    def paused(self) -> bool:
        return not self._go.is_set()

    def wait(self, seconds: float) -> None:
        """Let so much time pass, less where it is to stop; then as long as it is paused."""
        self._stop.wait(max(0.0, seconds))
        self._go.wait()


@dataclass(frozen=True)
class Progress:
    planned: int
    ledger: Ledger
    batches: int
    waits: str = ""
    """What it waits for between two of them."""


@dataclass(frozen=True)
class Result:
    plan: Plan
    action_id: int | None
    outcome: Outcome
    ledger: Ledger
    seconds: float
    problem: str = ""
    """Why it ended before its end."""
    verdict: CanaryVerdict | None = None
    """Of the canary; None: there was none, or nothing to wait for."""
    canary_results: CanaryResults = field(default_factory=CanaryResults)
    """Of its messages."""

    @property
    def stopped_by_canary(self) -> bool:
        """Whether the canary has stopped it."""
        return self.verdict in {CanaryVerdict.FAILED, CanaryVerdict.UNKNOWN}

    def as_json(self) -> dict[str, object]:
        return {
            "verb": self.plan.verb,
            "queue": self.plan.queue.name,
            "schema": self.plan.queue.schema,
            "action_id": self.action_id,
            "outcome": self.outcome.value,
            "planned": self.plan.count,
            "selected": self.ledger.selected,
            "done": self.ledger.out,
            "skipped": dict(self.ledger.skipped),
            "failed": dict(self.ledger.failed),
            "seconds": round(self.seconds, 3),
            "problem": self.problem,
            "canary": None if self.verdict is None else self._canary,
        }

    @property
    def _canary(self) -> dict[str, object]:
        return {"verdict": self.verdict, **self.canary_results.as_json()}

    def lines(self) -> list[str]:
        ledger = self.ledger
        action = "" if self.action_id is None else f", action {self.action_id}"
        lines = [
            f"{self.plan.verb} {self.plan.queue.label}: {self.outcome.value}{action}",
            f"  {ledger.out:,} of {self.plan.count:,} done, {ledger.skipped_count:,} skipped, "
            f"{ledger.failed_count:,} failed",
        ]
        lines += [f"  skipped {n:,}: {why}" for why, n in ledger.skipped.items()]
        lines += [f"  failed {n:,}: {why}" for why, n in ledger.failed.items()]
        return lines + ([f"  {self.problem}"] if self.problem else [])


_MOST_NAMED = 3


def _named(ids: Sequence[str]) -> str:
    """Messages by their ids, as far as these can be read at a glance."""
    more = f" and {len(ids) - _MOST_NAMED:,} more" if len(ids) > _MOST_NAMED else ""
    noun = "message" if len(ids) == 1 else "messages"
    return f"{noun} {', '.join(ids[:_MOST_NAMED])}{more}"


def paced(plan: Plan, action: MessageAction, batching: Batching) -> Plan:
    """The plan with what a canary does, where one is wanted."""
    if not batching.canary:
        return plan
    steps = "1, then 10, then the rest"
    if action.tracker is None:
        return replace(
            plan, canary=f"{steps}, without a verdict: {plan.verb} has no results to wait for"
        )
    share = batching.canary_share
    some = f"more than {share:.0%} fail" if share else "one fails"
    words = (
        f"{steps}; after 1 and after 10 it waits up to {duration(batching.canary_wait)} for their "
        f"results, and stops if {some}, or one is not known by then"
    )
    return replace(plan, canary=words)


def execute(
    database: Database,
    action: MessageAction,
    plan: Plan,
    *,
    batching: Batching | None = None,
    control: Control | None = None,
    progress: Callable[[Progress], None] = lambda _: None,
) -> Result:
    """Act on what the plan is for, and on nothing else.

    RefusedError where something stands in its way. ImbalanceError and errors of the database end
    it, with what was done until then in their `result`.
    """
    require_possible(plan)
    run = _Run(database, action, plan, batching or Batching(), control or Control(), progress)
    return run.all() if plan.count else run.nothing()


class _Run:
    def __init__(
        self,
        database: Database,
        action: MessageAction,
        plan: Plan,
        batching: Batching,
        control: Control,
        progress: Callable[[Progress], None],
    ) -> None:
        self._database = database
        self._action = action
        self._plan = plan
        self._batching = batching
        self._control = control
        self._progress = progress
        self._doing = f"{plan.verb} messages of {plan.queue.name!r}"
        self._ledger = Ledger()
        self._uncommitted = Ledger()
        """Of the batch whose commit has not been answered."""
        self._batches = 0
        self._stopped = ""
        """Why the verb itself can do no more."""
        self._tried = 0
        """Batches that did something."""
        self._verdict: CanaryVerdict | None = None
        self._canary_results = CanaryResults()
        self._started = time.monotonic()

    def nothing(self) -> Result:
        return self._result(None, Outcome.DONE)

    def all(self) -> Result:
        """Every batch; then how it ended is kept, as far as the connection allows."""
        with self._database.session(self._doing) as session:
            with session.transaction(self._doing) as connection:
                record = ActionRecord.begin(connection, self._plan.subject)
            problem = ""
            try:
                outcome = self._batches_of(session, record)
                self._end(session, record, outcome, self._why_ended(outcome))
            except ConnectionFailedError as error:
                raise self._cut_off(record, error) from error
            except (ConsoleError, KeyboardInterrupt) as error:
                problem = str(error) or "interrupted"
                stopped = isinstance(error, KeyboardInterrupt)
                outcome = Outcome.STOPPED if stopped else Outcome.FAILED
                self._end(session, record, outcome, problem)
                raise
        return self._result(record.action_id, outcome)

    def _end(self, session: Session, record: ActionRecord, outcome: Outcome, problem: str) -> None:
        detail = "; ".join(text for text in (self._plan.detail, problem) if text)
        with session.transaction(self._doing) as connection:
            record.end(connection, outcome, detail)
        record.log_locally(outcome, self._ledger, detail)

    def _cut_off(self, record: ActionRecord, error: ConnectionFailedError) -> ConnectionFailedError:
        """The same error with how far it came, looked up where the database can be reached."""
        done = self._ended_anew(record, str(error))
        batch, kind = self._uncommitted, ConnectionFailedError
        if done is not None:
            if batch.out and done == self._ledger.out + batch.out:
                self._ledger += batch
            words = self._looked_up(record, done)
        elif isinstance(error, InDoubtError) and batch.selected:
            kind = InDoubtError
            words = (
                f"IN DOUBT: the last batch of {batch.selected:,}, after {self._ledger.out:,} that "
                f"are done. Once the database answers again, its audit has the count "
                f"(action {record.action_id}), and running the same action again finishes the rest."
            )
        else:
            words = (
                f"{self._ledger.out:,} of {self._plan.count:,} are done and in the audit (action "
                f"{record.action_id}); the interrupted batch was rolled back. Run the same action "
                "again once the database answers: it finishes the rest."
            )
        told = kind(error.what, why=error.why, next_step=words)
        record.log_locally(Outcome.FAILED, self._ledger, str(told))
        return told

    def _looked_up(self, record: ActionRecord, done: int) -> str:
        words = (
            f"Checked afterwards: {done:,} of {self._plan.count:,} are done and in the audit "
            f"(action {record.action_id}), the others are unchanged. Run the same action again to "
            "finish them."
        )
        if done < self._ledger.out:
            words += (
                f" The server had acknowledged {self._ledger.out:,}: the server that answers now "
                "lacks some of what the one before had committed."
            )
        return words

    def _ended_anew(self, record: ActionRecord, problem: str) -> int | None:
        """End the action by another connection; how many it has done. None: it cannot be told.

        That waits for the last batch, should the server still be at it, and lets no other count:
        so what is told then stays true.
        """
        detail = "; ".join(text for text in (self._plan.detail, problem) if text)
        with patience(_LOST_SECONDS):
            for pause in _LOST_PAUSES:
                if pause and self._control.stopped:
                    break
                # Jitter, so that not all who lost a server come back to it in step.
                time.sleep(pause * random.uniform(0.75, 1.25))  # noqa: S311  # no secret
                try:
                    with self._database.transaction(self._doing) as connection:
                        return record.end(connection, Outcome.FAILED, detail)
                except ConsoleError:
                    continue
        return None

    def _result(self, action_id: int | None, outcome: Outcome) -> Result:
        seconds = time.monotonic() - self._started
        why = self._why_ended(outcome)
        return Result(
            self._plan,
            action_id,
            outcome,
            self._ledger,
            seconds,
            why,
            self._verdict,
            self._canary_results,
        )

    def _why_ended(self, outcome: Outcome) -> str:
        if self._stopped:
            return self._stopped
        if outcome is Outcome.STOPPED:
            return "cancelled; run the same action again to finish it"
        return ""

    def _batches_of(self, session: Session, record: ActionRecord) -> Outcome:
        plan = self._plan
        selection: Selection = ErrorSelection(plan.targets)
        if not plan.targets:
            criteria = SelectionCriteria(
                self._database, session, plan.filters, plan.states, plan.cutoff
            )
            selection = self._action.select(criteria)
        left = plan.count
        waiting: list[Message] = []
        while left > 0 and not self._control.stopped and not self._stopped:
            size = min(self._batching.sizes(self._tried), left)
            waiting = waiting or self._worth(session, selection, size)
            if not waiting:
                break
            chosen, waiting = waiting[:size], waiting[size:]
            begun = time.monotonic()
            ledger = self._one(session, record, chosen)
            left -= ledger.selected
            self._ledger += ledger
            self._batches += 1
            self._stopped = self._action.stop_reason(ledger)
            self._progress(Progress(plan.count, self._ledger, self._batches))
            if ledger.out:
                self._tried += 1
                self._judge(session)
            self._control.wait(self._rest(ledger.selected, begun))
        early = self._stopped or (self._control.stopped and left > 0)
        return Outcome.STOPPED if early else Outcome.DONE

    def _worth(self, session: Session, selection: Selection, size: int) -> list[Message]:
        """The next messages that the verb does not leave alone; none: that was all."""
        while chosen := selection.next(size):
            left = self._action.exclusions(session, chosen)
            out = {id(message) for some in left.values() for message in some}
            if taken := [message for message in chosen if id(message) not in out]:
                return taken
        return []

    def _one(self, session: Session, record: ActionRecord, chosen: Sequence[Message]) -> Ledger:
        """One batch: acted on and counted in one transaction, tried again while it is kept out."""

        if self._action.tracker is not None:
            self._action.tracker.enabled = self._batching.canary and self._tried < len(CANARY)

        def batch() -> Ledger:
            self._uncommitted = Ledger()
            with session.transaction(self._doing) as connection:
                ledger = self._action.run_batch(
                    connection, chosen, record.action_id
                ).require_balance()
                record.batch(connection, ledger)
                self._uncommitted = ledger
            self._uncommitted = Ledger()
            return ledger

        for pause in _BUSY_PAUSES:
            try:
                return retry_transient(batch)
            except BusyError:
                if self._control.stopped:
                    raise
                self._control.wait(pause)
        return retry_transient(batch)

    def _judge(self, session: Session) -> None:
        """After each batch of the canary: what becomes of it decides whether the others follow."""
        tracker = self._action.tracker
        if not self._batching.canary or tracker is None or self._tried > len(CANARY):
            return
        deadline = time.monotonic() + self._batching.canary_wait
        pauses = chain(_LOOK_PAUSES, repeat(_LOOK_PAUSES[-1]))
        while True:
            results = self._look(session, tracker)
            self._verdict = results.verdict(self._batching.canary_share)
            left = deadline - time.monotonic()
            if self._verdict is not None or left <= 0 or self._control.stopped:
                break
            words = f"canary: waiting for the result of {numbered(len(results.waiting), 'message')}"
            self._progress(Progress(self._plan.count, self._ledger, self._batches, words))
            self._control.wait(min(left, next(pauses)))
        self._verdict = self._verdict or CanaryVerdict.UNKNOWN
        before = self._canary_results
        self._canary_results = CanaryResults(
            before.done + results.done, before.failed + results.failed, results.waiting
        )
        if self._verdict is CanaryVerdict.FAILED:
            self._stopped = (
                f"canary: {_named(results.failed)} failed again; the others are untouched. Repair "
                "the cause first, then run the same again"
            )
        elif self._verdict is CanaryVerdict.UNKNOWN and not self._control.stopped:
            self._stopped = (
                f"canary: no result of {_named(results.waiting)} within "
                f"{duration(self._batching.canary_wait)}: whether they succeed is not known; the "
                "others are untouched. If consumers are running, run the same again with a longer "
                "--canary-wait, or without --canary"
            )

    def _look(self, session: Session, tracker: CanaryTracker) -> CanaryResults:
        """What has become of the last batch; where somebody holds one of them, nothing yet."""
        try:
            with session.transaction(self._doing) as connection:
                return tracker.results(connection)
        except BusyError:
            return CanaryResults(waiting=tracker.ids)

    def _rest(self, selected: int, begun: float) -> float:
        """The pause that keeps the rate."""
        if self._batching.rate is None:
            return 0.0
        return selected / self._batching.rate - (time.monotonic() - begun)
