"""Messages with a time outside the years 1 to 9999: milliseconds taken for seconds, infinity.

Where an index begins with the time, all are found; elsewhere those among the table's first rows.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from console import sql
from console.actions.availability import unavailable
from console.actions.indexes import Index, normalized
from console.actions.rows import Storage
from console.catalog import Kind, Queue, in_hand, lookups
from console.designs import Flow
from console.doctor.context import MOST, CheckContext, CheckGroup, command, counted
from console.doctor.finding import Code, Finding
from console.doctor.indexes import installed_indexes, plan_nodes
from console.doctor.repairs import VerbRepair
from console.filters import line_of
from console.monitor.limits import Severity

OUT_OF_RANGE = Code(
    "time_out_of_range",
    Severity.WARNING,
    "messages with a time before the year 1 or after 9999: what is due then is never popped",
    judgement="only you know the time that was meant",
)


@dataclass(frozen=True)
class _TimeRole:
    did: str
    """What was done to the messages at that time."""
    consequence: str
    verbs: tuple[str, ...] = ()
    """They end the time, or the message."""


_ROLES: Mapping[str, _TimeRole] = {
    "due_at": _TimeRole(
        "due",
        "no pop returns those after the year 9999; those before the year 1 come first, and make "
        "the queue's age thousands of years",
    ),
    "pushed_at": _TimeRole(
        "pushed",
        "their age is wrong, and with it limits on the age, the filters older= and newer=, and "
        "the order where it is that of the pushes",
        ("purge",),
    ),
    "claimed_at": _TimeRole(
        "claimed",
        "for how long is not known: claims after the year 9999 never count as stuck, those before "
        "the year 1 always do",
        ("release", "purge"),
    ),
    "done_at": _TimeRole(
        "done or failed",
        "how long ago is not known: what archives or counts them by their time leaves them out, "
        "or takes them first",
        ("requeue", "archive", "purge"),
    ),
}


@dataclass(frozen=True)
class _FarTime:
    id: str | None
    far: str
    found: int


@dataclass(frozen=True)
class _TimeColumn:
    """A column with times, of a queue's table or of a ring's popped messages."""

    role: str
    scope: sql.Scope
    states: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.scope.roles[self.role]

    def scope_for(self, scan: str, *, bounded: bool) -> sql.Scope:
        options = {"time": self.role, "scan": scan, "bounded": "yes" if bounded else "no"}
        return replace(self.scope, options={**self.scope.options, **options})


def _columns(context: CheckContext) -> Iterator[_TimeColumn]:
    queue, product = context.queue, context.database.product
    ring = queue.design.flow is Flow.NUMBERS
    plain = queue.scope(product)
    scopes = {Storage.SLOTS if ring else Storage.TABLE: (plain, () if ring else queue.states)}
    if ring and plain.options["in_hand"] == "on":
        scopes[Storage.IN_HAND] = (in_hand(queue, plain), ("claimed", "error"))
    for storage, (scope, states) in scopes.items():
        stored = replace(scope, options={**scope.options, "storage": storage.value})
        yield from (_TimeColumn(role, stored, states) for role in _ROLES if role in scope.roles)


def _check_times(context: CheckContext) -> Iterator[Finding]:
    if not context.has("far_times"):
        return
    for column in _columns(context):
        rows: dict[str | None, _FarTime] = {}
        for scope in _readable(context, column):
            for row in context.query(_FarTime, "far_times", scope):
                rows.setdefault(row.id, row)
        if rows:
            yield _finding(context.queue, column, list(rows.values()))


def _readable(context: CheckContext, column: _TimeColumn) -> Iterator[sql.Scope]:
    """All messages by an index; or those of each state that has one, and the first ones."""
    indexes = installed_indexes(context, [column.scope.values["table"]])
    valid = [index for index in indexes if index.valid]
    leads = normalized(column.name) in [normalized(sql.texts(one.columns)[0]) for one in valid]
    for scan in ("any", *column.states) if leads else ():
        scope = column.scope_for(scan, bounded=False)
        if lookups.once(
            _kind(context.queue, scope, valid), partial(_by_index, context, scope, column.name)
        ):
            yield scope
            if scan == "any":
                return
    yield column.scope_for("any", bounded=True)


def _kind(queue: Queue, scope: sql.Scope, indexes: Sequence[Index]) -> Hashable:
    """What a plan depends on: installed queues with the same options and indexes have the same."""
    table = scope.values["table"] if queue.kind is Kind.ADOPTED else ""
    columns = tuple((*sql.texts(index.columns), index.condition) for index in indexes)
    return queue.design.name, table, frozenset(scope.options.items()), columns


def _by_index(context: CheckContext, scope: sql.Scope, name: str) -> bool:
    """Whether the planner reads nothing but a range of an index."""
    with context.limited_transaction() as connection:
        query = sql.query(f"{context.queue.design.name}.far_times_plan", connection.dialect, scope)
        (planned,) = connection.execute(query).scalar_one()
    scans = [node for node in plan_nodes(planned["Plan"]) if "Relation Name" in node]
    return all(name in node.get("Index Cond", "") for node in scans)


def _finding(queue: Queue, column: _TimeColumn, rows: list[_FarTime]) -> Finding:
    role, found = _ROLES[column.role], max(len(rows), *(row.found for row in rows))
    ids = [row.id for row in rows if row.id is not None]
    chosen = [f"id={one}" for one in ids]
    repair = None
    if column.role == "due_at" and ids and not unavailable(queue, "reschedule"):
        texts = {"in": "0s", "filter": line_of(chosen)}
        repair = VerbRepair(queue, "reschedule", texts, "make these messages due now (reschedule)")
    return Finding(
        OUT_OF_RANGE,
        f"{counted(min(found, MOST + 1), 'message')} {role.did} before the year 1 or after 9999",
        evidence={
            "messages": found,
            "ids": ids,
            "time": column.role,
            "times": [row.far for row in rows],
        },
        cause="whoever wrote them took milliseconds for seconds, or meant never or always",
        consequence=role.consequence,
        repair=repair,
        judgement="" if repair else _judgement(queue, column, chosen),
    )


def _judgement(queue: Queue, column: _TimeColumn, chosen: Sequence[str]) -> str:
    """What is possible: verbs that end it, or the column itself."""
    by_hand = f"correct {column.name} in {column.scope.values['table']} by hand (UPDATE)"
    verbs = [verb for verb in _ROLES[column.role].verbs if not unavailable(queue, verb)]
    if not chosen or not verbs:
        return f"no verb of this queue changes that time: {by_hand}"
    # A time that is no time proves nothing of the claim's owner.
    options = ["--unknown"] if verbs[0] == "release" else []
    filters = [f"--filter={one}" for one in chosen]
    return f"{by_hand}, or: {command(queue, verbs[0], *filters, *options)}"


CHECKS = CheckGroup(
    (OUT_OF_RANGE,),
    {"times out of range": _check_times},
    lambda queue: not _ROLES.keys().isdisjoint(queue.roles),
)
