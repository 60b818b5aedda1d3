"""Verbs on a queue's tables and code: resize, relay, maintain, upgrade, uninstall, forget."""

from console.actions import adopt, install, maintain, relay, upgrade
from console.audit import Outcome
from console.designs import design
from console.plan import Plan, Result, queue_plan, single_step
from console.verbs.parameters import Parameter, Placement, WholeNumber
from console.verbs.verb import Params, Target, Verb, admin

_SIZE = design("ring").option("size")


RESIZE = Verb(
    "resize",
    lambda target, values: relay.plan(target.database, target.queue, values["size"]),
    """Give a ring SIZE slots. Live messages keep their order; callers wait while it runs.

    \b
    Examples:
      dbq-console resize orders 50000 --dry-run
      dbq-console resize orders 50000 --yes orders
    """,
    (
        Parameter(
            "size",
            "Slots; live messages keep their order.",
            WholeNumber(_SIZE.minimum, _SIZE.maximum),
            Placement.ARGUMENT,
            required=True,
        ),
    ),
    admin,
)

RELAY = Verb(
    "relay",
    lambda target, _: relay.plan(target.database, target.queue),
    """Renumber a ring's live messages, so that orphans, left behind by lost numbers, are popped.

    \b
    Examples:
      dbq-console relay orders --dry-run
      dbq-console relay orders --yes orders
    """,
    right=admin,
)


def _plan_forget(target: Target, values: Params) -> Plan:
    del values
    lines = [
        f"forget {target.queue.label} (design {target.queue.design.name})",
        "  it leaves the catalog and this console; its table and messages stay unchanged",
    ]
    return queue_plan(
        target.database,
        target.queue,
        "forget",
        lines,
        single_step(_forget, target),
        stoppable=False,
    )


def _forget(target: Target) -> Result:
    adopt.forget(target.database, target.queue)
    line = f"forgot {target.queue.label}; its table is untouched"
    return Result(Outcome.DONE, (line,), done=1, queue_removed=True)


MAINTAIN = Verb(
    "maintain",
    lambda target, _: maintain.plan(target.database, target.queue),
    """Vacuum, reindex or reorganize where bloat or fragmentation was measured, and say why.

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
    lambda target, _: upgrade.plan(target.database, target.queue),
    """Bring a queue's functions, columns, indexes and rights to this console's version.

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
    lambda target, values: install.plan(
        target.database,
        target.queue,
        keep_archive=values["keep_archive"],
        with_messages=values["with_messages"],
    ),
    """Remove a queue with all its objects and the messages in them.

    \b
    Examples:
      dbq-console uninstall orders --dry-run
      dbq-console uninstall orders --keep-archive --yes orders
    """,
    (
        Parameter("with-messages", "Even if messages are lost with it.", is_flag=True),
        Parameter("keep-archive", "Leave the archive; it stays listed.", is_flag=True),
    ),
    admin,
    examined_after=False,
)

FORGET = Verb(
    "forget",
    _plan_forget,
    """Take an adopted table out of the catalog. The table itself is left as it is.

    \b
    Examples:
      dbq-console forget jobs
      dbq-console forget jobs --schema sales
    """,
    right=admin,
    confirmed=False,
    any_design=True,
    examined_after=False,
)
