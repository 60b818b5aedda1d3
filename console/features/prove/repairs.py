"""Claims about purge and restore, and about the doctor: real faults, found and repaired."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from sqlalchemy import Connection

from console import sql
from console.actions import execute
from console.actions.archive import Purge
from console.actions.message_action import MessageAction
from console.actions.pop import PoppedMessage, pop_many
from console.actions.push import push_many
from console.actions.restore import Restore
from console.catalog import Queue
from console.catalog.audit import Outcome
from console.designs import Flow
from console.doctor import claims, messages
from console.features.prove.trial import Claim, Trial, require
from console.formats import numbered
from console.monitor.limits import DEFAULTS, Severity
from console.monitor.scan_query import MessageSource

MESSAGES = 6
_AT_ONCE = replace(DEFAULTS, stuck_after_seconds=0.0)


def _purged(trial: Trial) -> str:
    sent = trial.push(MESSAGES)
    with trial.database.transaction("find the queue's messages", read_only=True) as connection:
        source = MessageSource.of(connection, trial.installed)
    purged = moved(trial, Purge(source, reason="prove"))
    left = trial.pop(MESSAGES)
    require(not left, f"{numbered(len(left), 'message')} came after a purge of all")
    restored = moved(trial, Restore(source))
    # If a pop deletes, they are pushed again at the end; else their keys bring them back.
    came = trial.require_drained(sent)
    return f"{purged} purged, 0 came; {restored} restored, {len(came)} of {len(sent)} came"


def moved(trial: Trial, action: MessageAction) -> int:
    """The number of messages; the ledger has to balance."""
    planned = execute.plan(trial.database, action)
    require(planned.count == MESSAGES, f"{action.verb} planned {planned.count} of {MESSAGES}")
    done = planned.run_to_end()
    ledger = done.ledger
    require(
        done.outcome is Outcome.DONE and ledger.out == ledger.into == MESSAGES,
        f"{action.verb} of {MESSAGES}: out {ledger.out}, into {ledger.into}; "
        f"{done.outcome.value} {done.problem}".rstrip(),
    )
    return ledger.out


def _nothing_left_behind(trial: Trial) -> str:
    """By rolled-back calls, without a crash."""
    sent = trial.push(MESSAGES)
    with trial.database.transaction("pop and roll back") as connection:
        pop_many(connection, trial.queue, 2, "prove")
        connection.rollback()
    with trial.database.transaction("push and roll back") as connection:
        push_many(connection, trial.queue, trial.payloads(3))
        connection.rollback()
    named = ""
    if trial.draws_numbers:
        (orphans, parked), (holes, dropped) = (
            trial.require_repaired("orphan"),
            trial.require_repaired("hole"),
        )
        named = f"{orphans}: {parked}; {holes}: {dropped}; then "
    diagnosis = trial.diagnosis()
    severe = [
        finding for finding in diagnosis.findings if finding.code.severity is not Severity.NOTE
    ]
    require(not severe, f"the doctor finds {'; '.join(finding.summary for finding in severe)}")
    came = trial.require_drained(sent)
    return f"{named}no finding, {len(came)} of {len(sent)} came"


def _code_missing(trial: Trial) -> str:
    with trial.database.transaction("plant a fault") as connection:
        sql.run(connection, "prove.drop_pop", trial.queue.scope(connection))
    return trial.require_repaired("code_missing")[1]


def _claims_gone(trial: Trial) -> str:
    sent = trial.push(2)
    popped: list[PoppedMessage] = []

    def claim(connection: Connection) -> None:
        popped.extend(pop_many(connection, trial.queue, 2, "prove"))

    with trial.killed(claim) as connection:
        # end-session requires the session to be active at the queue.
        trial.push_one(connection)
    require(len(popped) == 2, f"a pop of 2 gave {len(popped)}")
    _, repaired = trial.require_repaired("claims_gone", _AT_ONCE)
    trial.require_drained(sent)
    return repaired


def _rows_held(trial: Trial) -> str:
    sent = trial.push(2)
    repaired = ""
    with trial.dying() as connection:
        pop_many(connection, trial.queue, 1, "prove")
        _, repaired = trial.require_repaired("rows_held", _AT_ONCE)
    trial.require_drained(sent)
    return repaired


def _without_payloads(trial: Trial, code: str) -> str:
    trial.push(2)
    with trial.database.transaction("plant a fault") as connection:
        sql.run(connection, "prove.drop_payloads", trial.queue.scope(connection))
    _, repaired = trial.require_repaired(code)
    popped = trial.pop(2)
    require(not popped, f"{numbered(len(popped), 'message')} without a payload came")
    return repaired


def _holds_rows(queue: Queue) -> bool:
    """Whether an uncommitted pop is visible as row locks; Service Broker's locks are different."""
    return queue.design.flow is Flow.DELETED and not queue.design.waits_itself


@dataclass(frozen=True)
class _Fault:
    """A real fault that the doctor has to find and repair."""

    code: str
    prove: Callable[[Trial], str]
    applies: Callable[[Queue], bool]
    otherwise: str

    @property
    def claim(self) -> Claim:
        return Claim(
            f"the doctor finds {self.code} and repairs it",
            self.prove,
            lambda queue: "" if self.applies(queue) else self.otherwise,
        )


_FAULTS = (
    _Fault("code_missing", _code_missing, lambda _: True, ""),
    _Fault("claims_gone", _claims_gone, claims.applies, "it keeps no popped message"),
    _Fault("rows_held", _rows_held, _holds_rows, "an uncommitted pop holds no rows of its table"),
    _Fault(
        "payload_missing",
        lambda trial: _without_payloads(trial, "payload_missing"),
        messages.applies,
        "its payloads are not in a table of their own",
    ),
    _Fault(
        "slot_without_content",
        lambda trial: _without_payloads(trial, "slot_without_content"),
        lambda queue: queue.partitions > 0,
        "its messages are not stored apart from slots",
    ),
)

CLAIMS = (
    Claim("purge and restore lose nothing", _purged),
    Claim("the doctor names what rolled-back calls leave, and repairs it", _nothing_left_behind),
    *(fault.claim for fault in _FAULTS),
)
