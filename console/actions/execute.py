"""The plan of an action on messages, and its run in batches: each is one transaction, checked,
counted and audited.

A run can be paused, stopped or cut off at any point: what was committed is in the audit, the rest
is untouched, and running the same action again finishes it.
"""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain, repeat

from console import sql
from console.actions import BATCH, MOST_BATCH, MOST_QUICK_BATCH
from console.actions.canary import CanaryResults, CanaryTracker, CanaryVerdict
from console.actions.indexes import Index
from console.actions.message_action import MessageAction, require_possible, select
from console.actions.rows import (
    Batch,
    Chosen,
    ErrorSelection,
    NextMessages,
    Selection,
    SelectionCriteria,
)
from console.actions.selected import SelectedMessages
from console.catalog import Kind, Queue, decisions
from console.catalog.audit import ActionRecord, Ledger, Outcome, Subject
from console.engines import Database, Session, retry_transient, time_limit
from console.errors import BusyError, ConnectionFailedError, ConsoleError, InDoubtError, UsageError
from console.formats import duration, numbered
from console.monitor.filters import NOTHING, Filters
from console.monitor.message import Message
from console.monitor.scans import Grouping
from console.plan import (
    MANY_MESSAGES,
    Control,
    OnProgress,
    Plan,
    Progress,
    Result,
    indented,
    refused,
    warning,
)

CANARY = (1, 10)
"""Sizes of the first batches with a canary."""
CANARY_WAIT_SECONDS = 30.0
_POLL_PAUSES = (0.1, 0.2, 0.5, 1.0)
"""Between two reads of the canary's results; the last one repeats."""
_BUSY_PAUSES = (0.1, 0.5, 2.0, 5.0)
_RECONNECT_PAUSES = (0.0, 1.0, 3.0, 6.0)
"""Before each attempt to find out how far an action came whose connection was lost."""
_QUICK_SECONDS = 0.2
"""A batch that took less may have been smaller than it could be."""
_FEW_GROUPS = 200
"""So many groups of a plan are asked for in each batch; of more, those that are in it."""
_RECONNECT_SECONDS = 30.0
"""For all of these attempts together."""


@dataclass(frozen=True)
class Batching:
    """Batch size, rate limit and canary."""

    batch: int | None = None
    """None: 500, and more while these are quick."""
    rate: float | None = None
    """Messages a second, at most."""
    canary: bool = False
    canary_wait: float = CANARY_WAIT_SECONDS
    canary_share: float = 0.0
    """The share of its messages that may fail, 0 to below 1."""

    def __post_init__(self) -> None:
        if self.batch is not None and not 1 <= self.batch <= MOST_BATCH:
            raise UsageError(f"A batch is 1 to {MOST_BATCH:,} messages, not {self.batch:,}.")
        if self.rate is not None and self.rate <= 0:
            raise UsageError("A rate is more than 0 messages a second.")
        if not 0 <= self.canary_share < 1:
            raise UsageError("The share of a canary that may fail is 0 or more, and below 1.")

    def sizes(self, done: int, usual: int = BATCH) -> int:
        """The size of the next batch, after `done` batches that moved something. `usual`: where the
        operator has given none."""
        size = CANARY[done] if self.canary and done < len(CANARY) else self.batch or usual
        return size if self.rate is None else max(1, min(size, round(self.rate)))


_MOST_NAMED = 3


def _named(ids: Sequence[str]) -> str:
    more = f" and {len(ids) - _MOST_NAMED:,} more" if len(ids) > _MOST_NAMED else ""
    noun = "message" if len(ids) == 1 else "messages"
    return f"{noun} {', '.join(ids[:_MOST_NAMED])}{more}"


def plan(
    database: Database,
    action: MessageAction,
    filters: Filters = NOTHING,
    batching: Batching | None = None,
    *,
    on_count: Callable[[int], None] = lambda _: None,
) -> Plan:
    """Only reads the database. `on_count` gets the messages counted so far."""
    batching, smaller = _below_table_lock(database, action.source.queue, batching or Batching())
    selected = select(database, action, filters, on_count=on_count)
    selected = replace(selected, consequences=(*selected.consequences, *smaller))
    requires_name = action.requires_name or selected.production or selected.count > MANY_MESSAGES
    canary, script = _canary(action, batching), action.script()
    return Plan(
        _subject_of(database, action, selected),
        action.source.queue,
        tuple(_plan_lines(database, action, selected, canary)),
        requires_name,
        partial(execute, database, action, selected, batching),
        needed=selected.count > 0,
        count=selected.count,
        sql=script,
        sample=selected.sample,
        lines_beside_sample=tuple(_plan_lines(database, action, selected, canary, sample=False)),
        obstacles=selected.obstacles,
        data={
            "verb": action.verb,
            "queue": action.source.queue.name,
            "schema": action.source.queue.schema,
            "design": action.source.queue.design.name,
            "connection": database.label,
            "production": selected.production,
            "filters": list(filters.words),
            "states": list(selected.states),
            "cutoff": selected.cutoff.isoformat(),
            "count": selected.count,
            "by_state": dict(selected.by_state),
            "totals": {state: asdict(total) for state, total in selected.totals.items()},
            "complete": selected.complete,
            "canary": canary or None,
            "skipped": dict(selected.excluded),
            "oldest_seconds": selected.oldest_seconds,
            "newest_seconds": selected.newest_seconds,
            "payload_bytes": selected.payload_bytes,
            "sample": [_sampled(message) for message in selected.sample],
            "sql": script,
            "consequences": list(selected.consequences),
            "obstacles": list(selected.obstacles),
            "confirmation": "name" if requires_name else "y",
            "detail": selected.detail,
        },
    )


def _below_table_lock(
    database: Database, queue: Queue, batching: Batching
) -> tuple[Batching, list[str]]:
    """Smaller batches for a table of others whose indexes add to the locks, and the line that says
    so; no queue of ours lets its locks become one of the whole table."""
    if queue.kind is not Kind.ADOPTED or not database.product.escalates_locks:
        return batching, []
    with database.transaction(f"read the indexes of {queue.name!r}", read_only=True) as connection:
        tables = database.product.array([queue.table])
        indexes = sql.rows(connection, Index, "doctor.indexes", schema=queue.schema, tables=tables)
    most = max(1, MOST_BATCH // (1 + len(indexes)))
    batch = batching.batch or BATCH
    if batch <= most:
        return replace(batching, batch=batch), []
    return replace(batching, batch=most), [
        f"batches of {most:,}, not {batch:,}: a message locks its row and "
        f"{numbered(len(indexes), 'index key')}, and for thousands of locks the server may lock "
        "the whole table"
    ]


def _sampled(message: Message) -> dict[str, object]:
    """Its key and times, never a payload."""
    return {
        "id": message.id,
        "state": message.state,
        "age_seconds": message.age_seconds,
        "attempts": message.attempts,
        "error": message.error,
        "claimed_by": message.claimed_by,
    }


def _plan_lines(
    database: Database,
    action: MessageAction,
    selected: SelectedMessages,
    canary: str,
    *,
    sample: bool = True,
) -> list[str]:
    """`sample`: with the names of the first messages."""
    queue, filters, count = action.source.queue, selected.filters, selected.count
    of = f"{queue.label} (design {queue.design.name}{queue.subscriber_suffix})"
    production = ", PRODUCTION" if selected.production else ""
    noun = "message" if count == 1 else "messages"
    lines = [
        f"{action.verb} {of} on {database.label}{production}",
        f"  {count:,} {noun}{_totals(selected)}",
    ]
    if filters.words:
        lines.append(f"  filters: {'  '.join(filters.words)}")
    if filters.error_group is not None:
        lines.append("  each by its id, attempts and error: what has changed is skipped")
    if not selected.complete:
        lines.append("  the search was cut short: there may be more of this group")
    if selected.oldest_seconds is not None and selected.newest_seconds is not None:
        ages = (duration(selected.newest_seconds), duration(selected.oldest_seconds))
        where = "in that state" if action.in_queue else "in the archive"
        lines.append(
            f"  {where} for {' to '.join(dict.fromkeys(ages))}, at "
            f"{selected.cutoff:%H:%M:%S} UTC, the cut-off"
        )
    if selected.payload_bytes is not None and count:
        lines.append(f"  payloads: {selected.payload_bytes:,} bytes")
    lines += [warning(f"  skipped: {n:,} {why}") for why, n in selected.excluded.items()]
    if filters.keep_newest:
        lines.append(warning(f"  skipped: the newest {filters.keep_newest:,}"))
    lines += [indented(line) for line in selected.consequences]
    if canary:
        lines.append(f"  canary: {canary}")
    if selected.sample and sample:
        names = ", ".join(message.id or message.key or "?" for message in selected.sample)
        lines.append(f"  the first: {names}")
    return lines + [refused(line) for line in selected.obstacles]


def _totals(selected: SelectedMessages) -> str:
    if selected.count and not selected.totals:
        return ", the first that match; further matches were not counted"
    shown = {state: total for state, total in selected.totals.items() if total.count != 0}
    totals = [f"{total.text} {state}" for state, total in shown.items()]
    return f" (of {', '.join(totals)})" if totals else ""


def _canary(action: MessageAction, batching: Batching) -> str:
    """What it does; empty: there is none."""
    if not batching.canary:
        return ""
    steps = "1, then 10, then the rest"
    if action.tracker is None:
        return f"{steps}, without a verdict: {action.verb} has no results to wait for"
    share = batching.canary_share
    some = f"more than {share:.0%} fail" if share else "one fails"
    return (
        f"{steps}; after 1 and after 10 it waits up to {duration(batching.canary_wait)} for their "
        f"results, and stops if {some}, or one is not known by then"
    )


def _subject_of(database: Database, action: MessageAction, selected: SelectedMessages) -> Subject:
    queue = action.source.queue
    return Subject(
        action.verb,
        queue.schema,
        queue.name,
        database.label,
        selected.filters.words,
        selected.cutoff,
        selected.count,
        selected.detail,
    )


def execute(
    database: Database,
    action: MessageAction,
    selected: SelectedMessages,
    batching: Batching | None = None,
    control: Control | None = None,
    on_progress: OnProgress = lambda _: None,
) -> Result:
    """Act on the selected messages, and on no others.

    RefusedError where there are obstacles; ImbalanceError and errors of the database end it.
    """
    require_possible(action, selected)
    run = _Run(
        database, action, selected, batching or Batching(), control or Control(), on_progress
    )
    return run.all() if selected.count else run.nothing()


class _Run:
    def __init__(
        self,
        database: Database,
        action: MessageAction,
        selected: SelectedMessages,
        batching: Batching,
        control: Control,
        on_progress: OnProgress,
    ) -> None:
        self._database = database
        self._action = action
        self._queue = action.source.queue
        self._selected = selected
        self._batching = batching
        self._control = control
        self._on_progress = on_progress
        self._doing = f"{action.verb} messages of {self._queue.name!r}"
        self._ledger = Ledger()
        self._uncommitted = Ledger()
        """Of the batch whose commit is not confirmed."""
        self._batches = 0
        self._usual_size = BATCH
        escalates = database.product.escalates_locks
        self._most_quick = MOST_BATCH if escalates else MOST_QUICK_BATCH
        self._kept = selected.filters.keep_newest
        self._decides = False
        """Whether the catalog is known to have decisions."""
        self._stopped = ""
        """Why the action or its canary ended the run."""
        self._fewer = 0
        """Than planned, since others have left and the newest are kept."""
        self._gone = 0
        """Of those planned, that no batch met any more."""
        self._moving_batches = 0
        """Those that moved something."""
        self._verdict: CanaryVerdict | None = None
        self._canary_results = CanaryResults()
        self._started = time.monotonic()

    @property
    def _subject(self) -> Subject:
        return _subject_of(self._database, self._action, self._selected)

    def nothing(self) -> Result:
        return self._result(None, Outcome.DONE)

    def all(self) -> Result:
        """Run every batch, then record the outcome."""
        with self._database.session(self._doing) as session:
            with session.transaction(self._doing) as connection:
                record = ActionRecord.begin(connection, self._subject)
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
        detail = self._detail(problem)
        with session.transaction(self._doing) as connection:
            record.end(connection, outcome, detail)
        record.log_locally(outcome, self._ledger, detail)

    def _detail(self, problem: str) -> str:
        return "; ".join(text for text in (self._selected.detail, problem) if text)

    def _cut_off(self, record: ActionRecord, error: ConnectionFailedError) -> ConnectionFailedError:
        """The same error, saying how far the run came, checked where the database is reachable."""
        done = self._end_after_reconnect(record, str(error))
        batch, error_type = self._uncommitted, ConnectionFailedError
        if done is not None:
            if batch.out and done == self._ledger.out + batch.out:
                self._ledger += batch
            next_step = self._checked_afterwards(record, done)
        elif isinstance(error, InDoubtError) and batch.selected:
            error_type = InDoubtError
            next_step = (
                f"IN DOUBT: the last batch of {batch.selected:,}, after {self._ledger.out:,} that "
                f"are done. Once the database answers again, its audit has the count "
                f"(action {record.action_id}), and running the same action again finishes the rest."
            )
        else:
            next_step = (
                f"{self._ledger.out:,} of {self._selected.count:,} are done and in the audit "
                f"(action {record.action_id}); the interrupted batch was rolled back. Run the same "
                "action again once the database answers: it finishes the rest."
            )
        cut_off = error_type(error.what, why=error.why, next_step=next_step)
        record.log_locally(Outcome.FAILED, self._ledger, str(cut_off))
        return cut_off

    def _checked_afterwards(self, record: ActionRecord, done: int) -> str:
        text = (
            f"Checked afterwards: {done:,} of {self._selected.count:,} are done and in the audit "
            f"(action {record.action_id}), the others are unchanged. Run the same action again to "
            "finish them."
        )
        if done < self._ledger.out:
            text += (
                f" The server had acknowledged {self._ledger.out:,}: the server that answers now "
                "lacks some of what the previous one had committed."
            )
        return text

    def _end_after_reconnect(self, record: ActionRecord, problem: str) -> int | None:
        """End the action on another connection; the number of messages done, None: not known.

        This waits for the last batch, should the server still be running it, and no batch is
        counted afterwards: the number is final.
        """
        detail = self._detail(problem)
        with time_limit(_RECONNECT_SECONDS, beyond=True):
            for pause in _RECONNECT_PAUSES:
                if pause and self._control.stopped:
                    break
                # Jitter: not all clients of a lost server reconnect at the same moment.
                time.sleep(pause * random.uniform(0.75, 1.25))  # noqa: S311  # no secret
                try:
                    with self._database.transaction(self._doing) as connection:
                        return record.end(connection, Outcome.FAILED, detail)
                except ConsoleError:
                    continue
        return None

    def _result(self, action_id: int | None, outcome: Outcome) -> Result:
        verb, ledger, planned = self._action.verb, self._ledger, self._selected.count
        problem, verdict = self._why_ended(outcome), self._verdict
        of = "" if action_id is None else f", action {action_id}"
        lines = [
            f"{verb} {self._queue.label}: {outcome.value}{of}",
            f"  {ledger.out:,} of {planned:,} done, {ledger.skipped_count:,} skipped, "
            f"{ledger.failed_count:,} failed",
        ]
        lines += [f"  skipped {n:,}: {why}" for why, n in ledger.skipped.items()]
        lines += [f"  failed {n:,}: {why}" for why, n in ledger.failed.items()]
        if self._fewer:
            newest = f"the newest {self._selected.filters.keep_newest:,} are kept"
            lines.append(f"  {self._fewer:,} fewer: others have left since the plan, and {newest}")
        if self._gone:
            lines.append(f"  {self._gone:,} had left or changed before their batch")
        canary = {"verdict": verdict, **self._canary_results.as_json()}
        return Result(
            outcome,
            tuple([*lines, f"  {problem}"] if problem else lines),
            ledger,
            action_id,
            done=ledger.out,
            problem=problem,
            stopped_by_canary=verdict in {CanaryVerdict.FAILED, CanaryVerdict.UNKNOWN},
            data={
                "verb": verb,
                "queue": self._queue.name,
                "schema": self._queue.schema,
                "action_id": action_id,
                "outcome": outcome.value,
                "planned": planned,
                "selected": ledger.selected,
                "done": ledger.out,
                "skipped": dict(ledger.skipped),
                "failed": dict(ledger.failed),
                "seconds": round(time.monotonic() - self._started, 3),
                "problem": problem,
                "canary": None if verdict is None else canary,
            },
        )

    def _why_ended(self, outcome: Outcome) -> str:
        cancelled = "cancelled; run the same action again to finish it"
        return self._stopped or (cancelled if outcome is Outcome.STOPPED else "")

    def _batches_of(self, session: Session, record: ActionRecord) -> Outcome:
        selected = self._selected
        criteria = SelectionCriteria(
            self._database, session, selected.filters, selected.states, selected.cutoff
        )
        selection: Selection = ErrorSelection(selected.targets)
        if not selected.targets:
            selection = self._action.select(criteria)
        left = selected.count
        chosen: Batch
        pending: Batch = []
        while left > 0 and not self._control.stopped and not self._stopped:
            size = min(self._batching.sizes(self._moving_batches, self._usual_size), left)
            pending = pending or self._next(session, selection, size)
            if not pending:
                self._gone = left
                break
            if isinstance(pending, Sequence) and (
                (may := self._may_take(session, selection, len(pending))) < len(pending)
            ):
                # The last ones are of the newest, which are kept: others have left meanwhile.
                pending, left = pending[:may], min(left, may)
                self._fewer = selected.count - self._ledger.selected - left
                if not pending:
                    break
            chosen, pending = pending, []
            if isinstance(chosen, Sequence):
                chosen, pending = chosen[:size], chosen[size:]
            begun = time.monotonic()
            ledger = self._run_batch(session, record, chosen)
            if time.monotonic() - begun < _QUICK_SECONDS and ledger.selected == self._usual_size:
                self._usual_size = min(2 * self._usual_size, self._most_quick)
            left -= ledger.selected
            self._ledger += ledger
            self._batches += bool(ledger.selected)
            self._stopped = self._stopped or self._action.stop_reason(ledger)
            self._report("1 batch" if self._batches == 1 else f"{self._batches:,} batches")
            if ledger.out:
                self._moving_batches += 1
                self._judge(session)
            self._control.wait(self._rate_pause(ledger.selected, begun))
        early = self._stopped or (self._control.stopped and left > 0)
        return Outcome.STOPPED if early else Outcome.DONE

    def _may_take(self, session: Session, selection: Selection, wanted: int) -> int:
        """At most `wanted`: without the newest that are kept, of those that the action takes.
        Asked once a batch is chosen: what leaves afterwards is in it, or newer."""
        kept, action = self._kept, self._action
        if kept is None or not selection.countable:
            return wanted
        grouping, lacking = action.grouping, kept
        most = kept if grouping is Grouping.NO else None
        for parts in selection.count(grouping, action.group_limit, most, behind=True):
            excluded = action.groups_excluded(session, [part.group for part in parts])
            lacking -= sum(part.matching for part in parts if part.group not in excluded)
            if lacking <= 0:
                return wanted
        return max(0, wanted - lacking)

    def _report(self, text: str) -> None:
        done = self._ledger.selected
        self._on_progress(Progress(done, self._selected.count, text, self._ledger))

    def _next(self, session: Session, selection: Selection, size: int) -> Batch:
        """The next messages that the action does not exclude; empty at the end."""
        canary = self._batching.canary and self._moving_batches < len(CANARY)
        unjudged = self._action.chosen_unjudged and bool(self._selected.excluded)
        # Where the newest are kept, each of the batch is known, and their order.
        exact = canary or unjudged or self._kept is not None
        if self._action.by_group and not exact and selection.choosable:
            if selection.lockable:
                return self._unseen(session, selection, size)
            return self._choose(session, selection, size)
        return self._read(session, selection, size)

    def _unseen(self, session: Session, selection: Selection, size: int) -> Batch:
        """The same, of which nothing is known but whose they are, where that decides."""
        action = self._action
        grouping, limit = action.grouping, action.group_limit
        planned = list(self._selected.by_group)
        while not selection.finished:
            wanted = NextMessages(selection, selection.place, size, grouping, limit)
            if grouping is not Grouping.BY_CLAIMANT:
                return wanted
            groups, until, place = planned, None, wanted.place
            if len(planned) > _FEW_GROUPS:
                groups, until, place = selection.groups(size, grouping, limit)
            excluded = action.groups_excluded(session, groups) if groups else {}
            if included := [group for group in groups if group not in excluded]:
                behind = selection.place
                return replace(wanted, place=place, groups=included, until=until, behind=behind)
            if groups is planned:
                break
        return []

    def _read(self, session: Session, selection: Selection, size: int) -> list[Message]:
        while chosen := selection.next(size):
            excluded = self._action.excluded(session, chosen)
            ids = {id(message) for some in excluded.values() for message in some}
            if included := [message for message in chosen if id(message) not in ids]:
                return included
        return []

    def _choose(self, session: Session, selection: Selection, size: int) -> Batch:
        """The same, without reading them."""
        action = self._action
        while chosen := selection.choose(size, action.grouping, action.group_limit):
            excluded = action.groups_excluded(session, [one.group for one in chosen.groups])
            included = Chosen(tuple(one for one in chosen.groups if one.group not in excluded))
            if len(included):
                return included.merged()
        return []

    def _run_batch(self, session: Session, record: ActionRecord, chosen: Batch) -> Ledger:
        """The batch; by halves where a row's value is an error, so that others are done."""
        try:
            return self._try_batch(session, record, chosen)
        except ConsoleError as error:
            if not error.of_a_row or self._selected.count == 1:
                raise
            if isinstance(chosen, NextMessages):
                chosen.selection.return_to(chosen.place)
                chosen = self._read(session, chosen.selection, chosen.most)
            elif isinstance(chosen, Chosen):
                with session.transaction(self._doing) as connection:
                    chosen = chosen.read(connection)
            if not chosen:
                return Ledger()
            if len(chosen) == 1:
                why = f"message {chosen[0].id or chosen[0].key}: {error.why}"
                ledger = Ledger(1, failed={why: 1})
                with session.transaction(self._doing) as connection:
                    record.batch(connection, ledger)
                return ledger
        half = len(chosen) // 2
        ledger = self._run_batch(session, record, chosen[:half])
        return ledger + self._run_batch(session, record, chosen[half:])

    def _try_batch(self, session: Session, record: ActionRecord, chosen: Batch) -> Ledger:
        """Act and count in one transaction; retried while others hold locks on the queue."""
        tracker = self._action.tracker
        if tracker is not None:
            tracker.enabled = self._batching.canary and self._moving_batches < len(CANARY)

        def batch() -> Ledger:
            self._uncommitted = Ledger()
            with session.transaction(self._doing) as connection:
                # Others may decide while this runs: from then on it holds for this too.
                self._decides = self._decides or decisions.has_decisions(connection)
                if self._decides and (decision := self._action.forbidden(connection)):
                    self._stopped = f"{decision.queue} is {decision.words}; the rest is unchanged"
                    return Ledger()
                if self._queue.kind is Kind.INSTALLED and sql.has(connection, "actions.seek_rows"):
                    sql.run(connection, "actions.seek_rows")
                ledger = self._action.apply(connection, chosen, record.action_id).require_balance()
                if ledger.selected:
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
        """After each batch of the canary: its results decide whether the run goes on."""
        tracker = self._action.tracker
        if not self._batching.canary or tracker is None or self._moving_batches > len(CANARY):
            return
        deadline = time.monotonic() + self._batching.canary_wait
        pauses = chain(_POLL_PAUSES, repeat(_POLL_PAUSES[-1]))
        while True:
            results = self._poll(session, tracker)
            self._verdict = results.verdict(self._batching.canary_share)
            left = deadline - time.monotonic()
            if self._verdict is not None or left <= 0 or self._control.stopped:
                break
            text = f"canary: waiting for the result of {numbered(len(results.waiting), 'message')}"
            self._report(text)
            self._control.wait(min(left, next(pauses)))
        self._verdict = self._verdict or CanaryVerdict.UNKNOWN
        self._canary_results = results.after(self._canary_results)
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

    def _poll(self, session: Session, tracker: CanaryTracker) -> CanaryResults:
        """Results of the last batch; all are waiting while another session locks one of them."""
        try:
            with session.transaction(self._doing) as connection:
                return tracker.results(connection)
        except BusyError:
            return CanaryResults(waiting=tracker.ids)

    def _rate_pause(self, selected: int, begun: float) -> float:
        if self._batching.rate is None:
            return 0.0
        return selected / self._batching.rate - (time.monotonic() - begun)
