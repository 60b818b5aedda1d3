"""Verbs on a queue's tables and code: resize, relay, maintain, upgrade, uninstall, forget."""

from console.actions import forget, install, maintain, relay, upgrade
from console.catalog.audit import Outcome
from console.designs import design
from console.plan import Plan, Result, single_step
from console.verbs.command import Params, admin
from console.verbs.parameters import Parameter, WholeNumber, argument
from console.verbs.verb import Target, Verb

_SIZE = design("ring").option("size")


RESIZE = Verb(
    "resize",
    make_plan=lambda target, values: relay.plan(target.database, target.queue, values["size"]),
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
    make_plan=lambda target, _: relay.plan(target.database, target.queue),
    help="""\
    Renumber a ring's live messages, so that orphans, left behind by lost numbers, are popped.

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
    return target.planned("forget", lines, single_step(_forget, target), stoppable=False)


def _forget(target: Target) -> Result:
    forget.forget(target.database, target.queue)
    line = f"forgot {target.queue.label}; its table is untouched"
    return Result(Outcome.DONE, (line,), done=1, queue_removed=True)


MAINTAIN = Verb(
    "maintain",
    make_plan=lambda target, _: maintain.plan(target.database, target.queue),
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
    make_plan=lambda target, _: upgrade.plan(target.database, target.queue),
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
    make_plan=lambda target, values: install.plan(
        target.database,
        target.queue,
        keep_archive=values["keep_archive"],
        with_messages=values["with_messages"],
    ),
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
    examined_after=False,
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
    examined_after=False,
)
