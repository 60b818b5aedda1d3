"""Verbs that move chosen messages: release, requeue, archive, purge, restore, reschedule."""

import shlex
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from console.actions import archive, broker, end_session, execute, requeue, reschedule, restore
from console.actions.message_action import MessageAction
from console.catalog import Queue, decisions
from console.engines import Database
from console.errors import RefusedError, UsageError
from console.formats import duration
from console.plan import Plan
from console.rights import Rights
from console.verbs.command import Params
from console.verbs.parameters import (
    BATCH,
    CANARY,
    CANARY_SHARE,
    CANARY_WAIT,
    DURATION,
    FILTER,
    MOMENT,
    RATE,
    REASON,
    SELECTION,
    SUBSCRIBER,
    Parameter,
    WholeNumber,
)
from console.verbs.verb import Instead, Target, Verb, batching


def _has_messages(queue: Queue) -> bool:
    """Requeue and release of Service Broker act on the queue and its conversations."""
    return not queue.design.waits_itself


def _message_plan(
    make: Callable[[Target, Params], MessageAction],
) -> Callable[[Target, Params], Plan]:
    """The plan of a verb whose `MessageAction` `make` returns."""

    def plan(target: Target, values: Params) -> Plan:
        action = make(target, values)
        filters, how = target.filters(values), batching(values)
        return execute.plan(target.database, action, filters, how, on_count=target.on_count)

    return plan


def _requeue(target: Target, values: Params) -> MessageAction:
    target = target.for_subscriber(values)
    other, back = values["to"], values["back"]
    if other is None:
        return requeue.Requeue(target.source(), to_back=back)
    if back:
        raise UsageError("--back and --to exclude each other.")
    to = target.find(other)
    with target.database.transaction("read the catalog", read_only=True) as connection:
        decisions.require_not_paused(connection, to.schema, to.name, "requeue to it")
    return requeue.RequeueTo(target.source(), to=target.source(to))


def _plan_requeue(target: Target, values: Params) -> Plan:
    if target.queue.design.waits_itself:
        return broker.plan_enable(target.database, target.queue)
    return _message_plan(_requeue)(target, values)


def _release(target: Target, values: Params) -> MessageAction:
    target = target.for_subscriber(values)
    return requeue.Release(
        target.source(),
        stuck_after_seconds=target.thresholds_of(target.queue.name).stuck_after_seconds,
        force=values["force"],
        unknown=values["unknown"],
    )


def _holders(database: Database, queue: Queue) -> Instead | None:
    """The sessions that hold rows of a queue without claims."""
    if "claimed" in queue.states or queue.design.waits_itself:
        return None
    holders = end_session.sessions_holding(database, queue)
    data = {
        "queue": queue.name,
        "schema": queue.schema,
        "holders": [session.as_json() for session in holders],
    }
    if not holders:
        return Instead((f"No session holds rows of {queue.label}.",), data)
    name = shlex.quote(queue.name)
    refusal = RefusedError(
        f"The queue {queue.name!r} has no claims: sessions hold the rows they popped.",
        next_step=f"Terminate one to get its rows back: dbq-console end-session {name} "
        f"{shlex.quote(str(holders[0].key))}",
    )
    lines = tuple(end_session.describe_holder(session, queue) for session in holders)
    return Instead(lines, data, refusal)


def _plan_release(target: Target, values: Params) -> Plan:
    if target.queue.design.waits_itself:
        return broker.plan_end(target.database, target.queue, batching(values).batch)
    return _message_plan(_release)(target, values)


def _purge(target: Target, values: Params) -> MessageAction:
    reason = values["reason"] or ""
    return archive.Purge(target.source(), reason=reason, permanently=values["permanently"])


def _archive(target: Target, values: Params) -> MessageAction:
    of = target.for_subscriber(values)
    return archive.Archive(of.source(), reason=values["reason"] or "")


def _restore(target: Target, values: Params) -> MessageAction:
    return restore.Restore(
        target.source(),
        action=values["action"],
        reason=values["reason"] or None,
        popped=values["popped"],
    )


def _reschedule(target: Target, values: Params) -> MessageAction:
    return reschedule.Reschedule(target.source(), at=values["at"], in_seconds=values["in"])


def _plan_archive(target: Target, values: Params) -> Plan:
    """Once; with `every` in rounds."""
    once = _message_plan(_archive)(target, values)
    every = values["every"]
    if every is None:
        if values["hot_above"] is not None:
            raise UsageError("--hot-above goes with --every.")
        return once
    again = f"  again every {duration(every)}, until it is stopped"
    run = partial(
        archive.rounds,
        target.database,
        _archive(target, values),
        target.filters(values),
        every,
        values["hot_above"],
        batching(values),
    )
    return replace(
        once,
        lines=(*once.lines, again),
        lines_beside_sample=(*once.lines_beside_sample, again),
        run=run,
        needed=True,
        count=None,
        rounds=True,
    )


def _purge_right(values: Params) -> Rights:
    return Rights.ADMIN if values.get("permanently") else Rights.OPERATOR


def _of_messages(*parameters: Parameter) -> tuple[Parameter, ...]:
    return tuple(
        parameter if parameter is SUBSCRIBER else replace(parameter, applies=_has_messages)
        for parameter in parameters
    )


RELEASE = Verb(
    "release",
    make_plan=_plan_release,
    help="""\
    Return claims of disconnected consumers to the queue: stuck, or bound to an ended session.

    The plan says how many owners are alive, who they are and where. A consumer still working on a
    released claim can no longer finish it: complete and fail say so.

    \b
    Examples:
      dbq-console release mail --yes
      dbq-console release mail --filter claimed_by=worker-7 --force --yes mail
    """,
    parameters=_of_messages(
        FILTER,
        SUBSCRIBER,
        Parameter("unknown", "Also claims whose owner is unknown.", is_flag=True),
        Parameter(
            "force", "All claims: young ones too, and those whose owner is alive.", is_flag=True
        ),
        BATCH,
        RATE,
        CANARY,
    ),
    instead=_holders,
    repeatable=True,
)

REQUEUE = Verb(
    "requeue",
    make_plan=_plan_requeue,
    help="""\
    Return errors to the queue: all, unless a filter says which. Their attempts stay counted.

    --canary requeues 1, waits until it is done or failed, then 10 more, then the rest. One that
    fails, or has no result in time, stops it: exit 4. With --to it does not wait.

    \b
    Examples:
      dbq-console requeue mail --filter 'error~time-out' --yes
      dbq-console requeue mail --filter error-group=1-9f86d081884c7d65 --canary --yes
      dbq-console requeue mail --rate 100 --canary --yes mail
      dbq-console requeue mail --to mail-slow --yes
    """,
    parameters=_of_messages(
        FILTER,
        SUBSCRIBER,
        Parameter("back", "Behind all ready messages, not to their old place.", is_flag=True),
        Parameter("to", "Into another queue, as new messages.", metavar="OTHER"),
        BATCH,
        RATE,
        CANARY,
        CANARY_WAIT,
        CANARY_SHARE,
    ),
    repeatable=True,
)

ARCHIVE = Verb(
    "archive",
    make_plan=_plan_archive,
    help="""\
    Move finished messages into the archive: done ones; errors in designs that keep no done ones.

    Never a ready message, whatever its age. With --every it runs until it is stopped.

    \b
    Examples:
      dbq-console archive jobs --older 1h --yes
      dbq-console archive jobs --older 1h --every 5s --hot-above 10000 --yes
    """,
    parameters=(
        FILTER,
        SUBSCRIBER,
        Parameter("older", "Short for --filter older=T: 1h, 7d.", DURATION, metavar="T"),
        REASON,
        Parameter("every", "Repeat after this pause, until stopped: 5s.", DURATION, metavar="T"),
        Parameter(
            "hot-above",
            "With --every: wait while more than N messages are ready.",
            WholeNumber(0),
            metavar="N",
        ),
        BATCH,
        RATE,
        CANARY,
    ),
    repeatable=True,
    archives=True,
)

PURGE = Verb(
    "purge",
    make_plan=_message_plan(_purge),
    help="""Move messages of a queue into its archive: all ready or in error, or those that match.

    Never a claimed one. What arrives while it runs stays. restore brings all of it back.

    \b
    Examples:
      dbq-console purge mail --filter older=1d --dry-run
      dbq-console purge mail --filter older=1d --reason 'ticket 4711' --yes mail
    """,
    parameters=(
        FILTER,
        REASON,
        Parameter("permanently", "Delete them for good.", is_flag=True),
        BATCH,
        RATE,
        CANARY,
    ),
    right=_purge_right,
    repeatable=True,
    archives=True,
)

RESTORE = Verb(
    "restore",
    make_plan=_message_plan(_restore),
    help="""Bring archived messages back: all that the last purge took, or those that match.

    In the state they had; a claimed one as an error. They keep their ids where the design
    keeps ids and these are free. Designs that delete at pop get them as new pushes, at the end.

    \b
    Examples:
      dbq-console restore mail --yes mail
      dbq-console restore mail --action 17 --filter 'error~time-out' --yes
    """,
    parameters=(
        FILTER,
        Parameter(
            "action",
            "What this action took; audit lists them.",
            WholeNumber(1, 2**63 - 1),
            metavar="N",
        ),
        Parameter("reason", "Those whose reason in the archive contains the text.", metavar="TEXT"),
        Parameter("popped", "What consumers popped (archive_at_pop).", is_flag=True),
        BATCH,
        RATE,
        CANARY,
    ),
    repeatable=True,
)

RESCHEDULE = Verb(
    "reschedule",
    make_plan=_message_plan(_reschedule),
    help="""Give messages another due time: all, ready or scheduled, or those that match.

    All of them the same, in whole seconds. What is popped meanwhile is skipped.

    \b
    Examples:
      dbq-console reschedule timers --filter 'payload.kind=mail' --in 10m --yes
      dbq-console reschedule timers --filter state=ready --at 2026-03-29T08:00Z --yes timers
    """,
    parameters=(
        Parameter("at", "When they are due: 2026-03-29T08:00Z.", MOMENT, metavar="T"),
        Parameter("in", "This long from now: 10m, 1h30m.", DURATION, metavar="T"),
        *SELECTION,
    ),
)
