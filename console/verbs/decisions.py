"""An operator's decisions about a queue, and notes, for the whole team: pause, protect, note."""

from datetime import UTC, datetime

from console import sql
from console.actions import pause
from console.actions.availability import require_verb
from console.catalog import Queue, audit
from console.catalog.audit import Outcome, Subject
from console.designs import Flow
from console.engines import Database
from console.errors import RefusedError, UsageError
from console.formats import duration, moment, numbered
from console.plan import Plan, Result, single_step
from console.verbs.command import Params, admin
from console.verbs.parameters import DURATION, Parameter, Placement
from console.verbs.verb import Target, Verb


def _may_be_full(queue: Queue) -> bool:
    """Whether its push may return null."""
    return queue.design.flow is Flow.NUMBERS


_REASON = Parameter("reason", "Why; shown wherever the queue is.")


def _plan_protect(target: Target, values: Params) -> Plan:
    lines = [
        f"protect {target.queue.label}: purge, archive, uninstall and a smaller size are refused",
        "  by every console, until it is unprotected; callers and other verbs continue",
    ]
    return target.planned(
        "protect", lines, single_step(_protect, target, values["reason"] or ""), stoppable=False
    )


def _protect(target: Target, reason: str) -> Result:
    done = _decide(target, "protect", reason, operator=audit.operator(), reason=reason)
    if not done:
        raise UsageError(f"The queue {target.queue.name!r} is already protected.")
    return _done(f"protected {target.queue.label}")


def _plan_unprotect(target: Target, values: Params) -> Plan:
    del values
    lines = [
        f"unprotect {target.queue.label}: it can be purged, archived, made smaller, uninstalled"
    ]
    run = single_step(_unprotect, target)
    return target.planned("unprotect", lines, run, requires_name=True, stoppable=False)


def _unprotect(target: Target) -> Result:
    if not _decide(target, "unprotect", ""):
        raise UsageError(f"The queue {target.queue.name!r} is not protected.")
    return _done(f"unprotected {target.queue.label}")


def _decide(target: Target, verb: str, detail: str, **values: object) -> list[datetime]:
    """Run `catalog.VERB` in one transaction with the audit; the values that it returned."""
    subject = Subject.of(target.database, target.queue, verb, detail)
    with audit.recorded(target.database, f"{verb} {target.queue.name!r}", subject) as act:
        audit.prepare_decisions(act.connection)
        return sql.values(
            act.connection,
            datetime,
            f"catalog.{verb}",
            schema=target.queue.schema,
            queue=target.queue.name,
            **values,
        )


def _done(line: str) -> Result:
    return Result(Outcome.DONE, (line,), done=1)


def _plan_pause(target: Target, values: Params) -> Plan:
    push, seconds = values["push"], values["for"]
    if push and not _may_be_full(target.queue):
        raise UsageError(
            f"Pushes of {target.queue.name!r} cannot be paused.",
            why="Only a ring's push may return null, when it is full: with another design a "
            "producer would assume that its message was pushed, and lose it.",
            next_step="Leave out --push.",
        )
    lines = _own_rule(target) if target.queue.design.library else _exchange(target, push=push)
    if seconds is not None:
        lines.append(
            f"  a pause that lasts longer than {duration(seconds)} is a finding, and continues"
        )
    run = single_step(_pause, target, values)
    return target.planned("pause", lines, run, requires_name=True, stoppable=False)


def _own_rule(target: Target) -> list[str]:
    database, queue = target.database, target.queue
    require_verb(queue, "pause")
    with database.transaction(f"plan a pause of {queue.name!r}", read_only=True) as connection:
        why = pause.impossible(connection, queue)
        already = pause.paused_by_library(connection, queue) if not why else []
    if why:
        raise RefusedError(f"The queue {queue.name!r} cannot be paused.", why=f"{why}.")
    lines = [f"pause {queue.label}: {queue.design.paused}"]
    if already:
        lines.append(
            f"  it has been paused there since {moment(min(already), UTC)}: resume ends that too"
        )
    return lines


def _exchange(target: Target, *, push: bool) -> list[str]:
    calling = pause.callers(target.database, target.queue)
    sessions = "sessions that this login may not see"
    if calling is not None:
        sessions = numbered(calling, "session")
    return [
        f"pause {target.queue.label}: its pops return nothing, without an error, until it is "
        "resumed",
        "  its pushes return null, as when it is full: a producer that ignores that loses its "
        "messages"
        if push
        else "  pushes continue, and what is pushed waits",
        f"  {sessions} in an open transaction on it: what they have popped stays theirs",
        "  a consumer that reads the table directly is not stopped",
    ]


def _pause(target: Target, values: Params) -> Result:
    since = pause.pause(
        target.database,
        target.queue,
        reason=values["reason"] or "",
        seconds=values["for"],
        push=values["push"],
    )
    return _done(f"paused {target.queue.label} at {moment(since, UTC)}")


def _plan_resume(target: Target, values: Params) -> Plan:
    del values
    library = target.queue.design.library_name
    how = f"as {library} does it" if library else "by the code it had before"
    lines = [f"resume {target.queue.label}: its pops return messages again, {how}"]
    return target.planned("resume", lines, single_step(_resume, target), stoppable=False)


def _resume(target: Target) -> Result:
    since = pause.resume(target.database, target.queue)
    return _done(f"resumed {target.queue.label}, which was paused since {moment(since, UTC)}")


def note(database: Database, text: str, queue: Queue | None) -> datetime:
    """Keep it for the queue, or without one for the whole database; the time of the note."""
    if not text.strip():
        raise UsageError("A note cannot be empty.")
    schema, name = ("", "") if queue is None else (queue.schema, queue.name)
    subject = Subject("note", schema, name, database.label, detail=text)
    with audit.recorded(database, "keep a note", subject) as act:
        audit.prepare_decisions(act.connection)
        return sql.value(
            act.connection,
            datetime,
            "catalog.note",
            schema=schema,
            queue=name,
            operator=audit.operator(),
            note=text,
        )


def _plan_note(target: Target, values: Params) -> Plan:
    of = "every queue of the database" if values["all"] else target.queue.label
    lines = [f"note {values['text']!r}: a mark on the charts of {of}"]
    run = single_step(_note, target, values)
    return target.planned("note", lines, run, stoppable=False)


def _note(target: Target, values: Params) -> Result:
    at = note(target.database, values["text"], None if values["all"] else target.queue)
    return _done(f"noted at {moment(at, UTC)}: {values['text']}")


PAUSE = Verb(
    "pause",
    make_plan=_plan_pause,
    help="""Pause a queue: its pops return nothing, without an error, until it is resumed.

    Pushes continue. Calls in progress finish normally. Its functions are replaced in one
    transaction, and resume restores them byte for byte; upgrade keeps the pause.
    A library's queue is paused by its own rule (River, Solid Queue), or refused with the reason.

    \b
    Examples:
      dbq-console pause orders --reason "bad release" --yes orders
      dbq-console pause orders --for 2h --yes orders
    """,
    parameters=(
        _REASON,
        Parameter("for", "A pause that lasts longer is a finding; it continues.", DURATION),
        Parameter(
            "push",
            "Pause its pushes too: they return null, as when it is full.",
            is_flag=True,
            applies=_may_be_full,
        ),
    ),
    right=admin,
)

RESUME = Verb(
    "resume",
    make_plan=_plan_resume,
    help="""End the pause of a queue: its functions are restored as they were.

    \b
    Examples:
      dbq-console resume orders --yes
    """,
    right=admin,
)

PROTECT = Verb(
    "protect",
    make_plan=_plan_protect,
    help="""Protect a queue: every console refuses purge, archive, uninstall and a smaller size.

    This is stored in the database, until the queue is unprotected. Callers continue.

    \b
    Examples:
      dbq-console protect orders --reason "evidence of incident 4711" --yes
    """,
    parameters=(_REASON,),
)

UNPROTECT = Verb(
    "unprotect",
    make_plan=_plan_unprotect,
    help="""End the protection of a queue. Its name must be typed.

    \b
    Examples:
      dbq-console unprotect orders --yes orders
    """,
)

NOTE = Verb(
    "note",
    make_plan=_plan_note,
    parameters=(
        Parameter("text", "What happened.", placement=Placement.BEFORE, required=True),
        Parameter("all", "A mark on every queue of the database.", is_flag=True),
    ),
    confirmed=False,
)
