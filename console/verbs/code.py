"""Verbs on a queue's tables and code: resize, relay, maintain, upgrade, uninstall, forget."""

from dataclasses import asdict
from functools import partial

from console.actions import adopt as adopting
from console.actions import install as uninstalling
from console.actions import maintain as maintaining
from console.actions import maintain_plan, relay
from console.actions import upgrade as upgrading
from console.actions.execute import Control
from console.audit import Ledger, Outcome
from console.designs import design
from console.formats import numbered
from console.verbs.command import Params, admin
from console.verbs.parameters import Parameter, WholeNumber, argument
from console.verbs.verb import (
    OnProgress,
    Plan,
    Progress,
    Result,
    Target,
    Verb,
    queue_plan,
    single_step,
)

_SIZE = design("ring").option("size")


def _plan(verb: str, target: Target, values: Params) -> Plan:
    size: int | None = values.get("size")
    found = relay.plan(target.database, target.queue, size)
    obstacles: tuple[str, ...] = ()
    if found.too_many:
        live = numbered(found.measure.live, "live message")
        more = f"{found.too_many:,} more than {found.new_size:,} slots take"
        obstacles = (f"It holds {live}, {more}.",)
    return queue_plan(
        target,
        verb,
        found.lines(),
        partial(_relay, target, size),
        requires_name=True,
        count=found.measure.live,
        obstacles=obstacles,
        next_step=f"Drain {numbered(found.too_many, 'message')} first, or choose "
        f"{found.measure.live:,} slots or more.",
        stoppable=False,
        data={
            "queue": target.queue.name,
            "schema": target.queue.schema,
            **asdict(found.measure),
            "new_size": found.new_size,
            "drain_first": found.too_many,
            "blockers": [asdict(blocker) for blocker in found.blockers],
        },
    )


def _relay(target: Target, size: int | None, control: Control, on_progress: OnProgress) -> Result:
    del control
    on_progress(Progress(0, None, "waiting for open transactions of its callers"))
    done = relay.relay(target.database, target.queue, size)
    ledger = Ledger(selected=done.live, out=done.live, into=done.live)
    return Result(Outcome.DONE, tuple(done.lines(target.queue)), ledger, done=1, data=asdict(done))


RESIZE = Verb(
    "resize",
    make_plan=partial(_plan, "resize"),
    help="""Give a ring SIZE slots. Live messages keep their order; callers wait while it runs.

    \b
    Examples:
      dbq-console resize orders 50000 --dry-run
      dbq-console resize orders 50000 --yes orders
    """,
    parameters=(
        argument(
            "size",
            "Slots; live messages keep their order.",
            WholeNumber(_SIZE.minimum, _SIZE.maximum),
        ),
    ),
    right=admin,
)

RELAY = Verb(
    "relay",
    make_plan=partial(_plan, "relay"),
    help="""\
    Renumber a ring's live messages, so that orphans, left behind by lost numbers, are popped.

    \b
    Examples:
      dbq-console relay orders --dry-run
      dbq-console relay orders --yes orders
    """,
    right=admin,
)


def _plan_maintain(target: Target, values: Params) -> Plan:
    del values
    found = maintain_plan.plan(target.database, target.queue)
    return queue_plan(
        target,
        "maintain",
        found.lines(),
        partial(_maintain, target, found),
        needed=found.needed,
        count=len(found.steps),
        sql="\n\n".join(step.sql for step in found.steps),
        data=found.as_json(),
    )


def _maintain(
    target: Target, found: maintain_plan.MaintainPlan, control: Control, on_progress: OnProgress
) -> Result:
    begun = 0

    def progress(one: maintaining.StepResult) -> None:
        nonlocal begun
        begun += 1
        on_progress(Progress(begun, len(found.steps), f"{one.step.what} {one.step.target}"))

    done = maintaining.maintain(target.database, found, control=control, progress=progress)
    return Result(
        done.outcome,
        tuple(done.lines()),
        action_id=done.action_id,
        done=sum(not one.problem for one in done.done),
        data=done.as_json(),
    )


def _plan_upgrade(target: Target, values: Params) -> Plan:
    del values
    found = upgrading.plan(target.database, target.queue)
    return queue_plan(
        target,
        "upgrade",
        found.lines(),
        single_step(_upgrade, target),
        needed=found.needed,
        count=len(found.differences),
        stoppable=False,
        data=found.as_json(),
    )


def _upgrade(target: Target) -> Result:
    done = upgrading.upgrade(target.database, target.queue)
    line = f"upgraded {target.queue.label}" if done.needed else done.lines()[0]
    return Result(Outcome.DONE, (line,), done=int(done.needed), data=done.as_json())


def _plan_uninstall(target: Target, values: Params) -> Plan:
    keep, with_messages = values["keep_archive"], values["with_messages"]
    found = uninstalling.plan(target.database, target.queue, keep_archive=keep)
    obstacles: tuple[str, ...] = ()
    if found.wants_with_messages and not with_messages:
        lost = numbered(found.lost, "message")
        obstacles = (f"The queue still holds {lost}, which would be lost.",)
    return queue_plan(
        target,
        "uninstall",
        [*found.lines(), *(f"  REFUSED: {why} (--with-messages)" for why in obstacles)],
        single_step(_uninstall, target, keep_archive=keep, with_messages=with_messages),
        requires_name=True,
        count=found.lost,
        stoppable=False,
        obstacles=obstacles,
        needs_consent=True,
        next_step="Confirm that with --with-messages, or drain or archive them first.",
        data=_uninstalled(found),
    )


def _uninstall(target: Target, *, keep_archive: bool, with_messages: bool) -> Result:
    done = uninstalling.uninstall(
        target.database, target.queue, keep_archive=keep_archive, with_messages=with_messages
    )
    lost = numbered(done.lost, "message")
    line = f"uninstalled {target.queue.label}; {lost} were lost with it"
    return Result(
        Outcome.DONE, (line,), done=1, queue_removed=not keep_archive, data=_uninstalled(done)
    )


def _uninstalled(found: uninstalling.UninstallPlan) -> dict[str, object]:
    return {f: v for f, v in asdict(found).items() if f != "queue"} | {"lost": found.lost}


def _plan_forget(target: Target, values: Params) -> Plan:
    del values
    lines = [
        f"forget {target.queue.label} (design {target.queue.design.name})",
        "  it leaves the catalog and this console; its table and messages stay unchanged",
    ]
    return queue_plan(target, "forget", lines, single_step(_forget, target), stoppable=False)


def _forget(target: Target) -> Result:
    adopting.forget(target.database, target.queue)
    line = f"forgot {target.queue.label}; its table is untouched"
    return Result(Outcome.DONE, (line,), done=1, queue_removed=True)


MAINTAIN = Verb(
    "maintain",
    make_plan=_plan_maintain,
    help="""Vacuum, reindex or reorganize where bloat or fragmentation was measured, and say why.

    No message moves and callers continue, except for a REBUILD of a Service Broker queue: the plan
    says so. Steps run one at a time; Ctrl-C stops between two.

    \b
    Examples:
      dbq-console maintain mail --dry-run
      dbq-console maintain mail --yes
    """,
)

UPGRADE = Verb(
    "upgrade",
    make_plan=_plan_upgrade,
    help="""Bring a queue's functions, columns, indexes and rights to this console's version.

    The plan names what differs, including code modified locally. One transaction, then missing
    indexes and keys one by one; messages are not touched and callers continue.

    \b
    Examples:
      dbq-console upgrade mail --dry-run
      dbq-console upgrade mail --yes
      dbq-console upgrade --all --yes
    """,
    right=admin,
    for_all=True,
)

UNINSTALL = Verb(
    "uninstall",
    make_plan=_plan_uninstall,
    help="""Remove a queue with all its objects and the messages in them.

    \b
    Examples:
      dbq-console uninstall orders --dry-run
      dbq-console uninstall orders --keep-archive --yes orders
    """,
    parameters=(
        Parameter("with-messages", "Even if messages are lost with it.", is_flag=True),
        Parameter("keep-archive", "Leave the archive; it stays listed.", is_flag=True),
    ),
    right=admin,
)

FORGET = Verb(
    "forget",
    make_plan=_plan_forget,
    help="""Take an adopted table out of the catalog. The table itself is left as it is.

    \b
    Examples:
      dbq-console forget jobs
      dbq-console forget jobs --schema sales
    """,
    right=admin,
    confirmed=False,
    any_design=True,
)
