"""The verb on sessions that hold rows of a queue: end-session."""

from functools import partial

from console.actions import broker
from console.actions import end_session as ending
from console.actions.execute import Control
from console.audit import Outcome
from console.errors import UsageError
from console.formats import duration, numbered
from console.verbs.command import Params
from console.verbs.parameters import DURATION, Parameter, Placement
from console.verbs.verb import (
    OnProgress,
    Plan,
    Progress,
    Result,
    Target,
    Verb,
    batching,
    queue_plan,
    single_step,
)


def plan_switch(target: Target) -> Plan:
    """requeue of Service Broker: enable a queue that poison messages have disabled."""
    found = broker.plan_switch(target.database, target.queue)
    return queue_plan(
        target,
        "requeue",
        found.lines(),
        single_step(_switch_on, target),
        requires_name=found.requires_queue_name,
        needed=found.needed,
        stoppable=False,
        data=found.as_json(),
    )


def _switch_on(target: Target) -> Result:
    done = broker.enable_queue(target.database, target.queue)
    state = "is enabled" if done.needed else "was already enabled"
    return Result(
        Outcome.DONE, (f"{target.queue.label} {state}",), done=int(done.needed), data=done.as_json()
    )


def plan_end(target: Target, values: Params) -> Plan:
    """release of Service Broker: end finished conversations that hold nothing."""
    found = broker.plan_conversations(target.database, target.queue)
    return queue_plan(
        target,
        "release",
        found.lines(),
        partial(_end_conversation, target, found, batching(values).batch),
        requires_name=found.requires_queue_name,
        needed=found.conversations > 0,
        count=found.conversations,
        data=found.as_json(),
    )


def _end_conversation(
    target: Target,
    found: broker.ConversationsPlan,
    batch: int,
    control: Control,
    on_progress: OnProgress,
) -> Result:
    done = broker.end_conversations(
        target.database,
        found,
        batch=batch,
        control=control,
        progress=lambda ended: on_progress(Progress(ended, found.conversations)),
    )
    outcome = Outcome.STOPPED if control.stopped else Outcome.DONE
    line = f"{target.queue.label}: {numbered(done.out, 'conversation')} ended"
    return Result(outcome, (line,), done, done=done.out, data={"ended": done.out})


def _plan(target: Target, values: Params) -> Plan:
    name = values["session"]
    if not name:
        raise _no_session(target)
    found = ending.plan(target.database, target.queue, name)
    lines, data = found.lines(), found.as_json()
    if (found.session.transaction_seconds or 0.0) < (values["older"] or 0.0):
        lines.append(f"  its transaction is younger than {duration(values['older'])}: skipped")
        return queue_plan(
            target, "end-session", lines, single_step(_skipped, found), needed=False, data=data
        )
    run = partial(_end, target, found)
    return queue_plan(target, "end-session", lines, run, stoppable=False, data=data)


def _skipped(found: ending.EndPlan) -> Result:
    words = f"{found.label} was skipped: its transaction is younger, so it is another one"
    return Result(Outcome.DONE, (words,))


def _no_session(target: Target) -> UsageError:
    """The error that lists the sessions to choose from."""
    holders = ending.sessions_holding(target.database, target.queue)
    return UsageError(
        "end-session needs a session.",
        why="; ".join(ending.describe_holder(one, target.queue) for one in holders)
        or "No session holds rows of the queue now.",
    )


def _end(
    target: Target, found: ending.EndPlan, control: Control, on_progress: OnProgress
) -> Result:
    del control
    on_progress(Progress(0, None, "waiting until it has ended"))
    done = ending.end_session(target.database, found)
    outcome = Outcome.STOPPED if done.changed_meanwhile else Outcome.DONE
    return Result(
        outcome,
        tuple(done.lines()),
        action_id=done.action_id,
        done=int(not done.changed_meanwhile),
        data=done.as_json(),
    )


END_SESSION = Verb(
    "end-session",
    make_plan=_plan,
    help="""\
    Terminate a SESSION that holds rows of a queue; roll back a prepared transaction by name.

    The plan says who it is, what it holds and who waits for it. Its transaction is rolled back,
    so its rows come back. It is skipped if it is in another transaction by then.

    \b
    Examples:
      dbq-console end-session mail 4711 --dry-run
      dbq-console end-session mail 4711 --yes
    """,
    parameters=(
        Parameter(
            "session",
            "Its id, or a prepared transaction's name; empty: list who holds rows.",
            placement=Placement.ARGUMENT,
        ),
        Parameter(
            "older",
            "Only if its transaction is at least this old: a younger one is another.",
            DURATION,
            metavar="T",
        ),
    ),
)
