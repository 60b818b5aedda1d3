"""Adopt an existing table as a queue of a design."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from console import catalog, sql
from console.actions.availability import unavailable
from console.actions.install import prepare_catalog, record, require_schema
from console.catalog import Kind, Queue, audit, object_names, relations
from console.catalog.relations import Column
from console.designs import Design
from console.engines import Database, Product, product_of
from console.errors import ConsoleError, RefusedError, UsageError
from console.features.presets import discovery
from console.monitor.message import Masks, Message
from console.monitor.messages import read_page
from console.monitor.sample import take_sample
from console.monitor.scan_query import KeyType
from console.monitor.snapshot import QueueSnapshot, snapshot

if TYPE_CHECKING:
    from sqlalchemy import Connection

MOST_TABLES = 2_000
SHOWN = 5
"""Messages of a preview."""
_PAYLOAD_BYTES = 120


@dataclass(frozen=True)
class CandidateTable:
    """A table as the engine's catalog has it."""

    schema: str
    name: str
    rows_estimated: int | None
    """None: unknown to the engine."""


@dataclass(frozen=True)
class CandidateQueue:
    """A table read as a queue, with nothing recorded."""

    queue: Queue
    messages: tuple[Message, ...] = ()
    figures: QueueSnapshot | None = None
    errors: tuple[ConsoleError, ...] = ()
    """What could not be read with this mapping."""


def tables(database: Database) -> list[CandidateTable]:
    """The tables that belong to no queue, by schema and name. Blocking."""
    with database.transaction("list the tables", read_only=True) as connection:
        candidate_tables = sql.rows(connection, CandidateTable, "catalog.tables", n=MOST_TABLES)
        known = catalog.queues(connection)
    taken = {(q.schema, name) for q in known for name in _names(database, q)}
    return [table for table in candidate_tables if (table.schema, table.name) not in taken]


def _names(database: Database, queue: Queue) -> list[str]:
    if queue.kind is Kind.ADOPTED:
        return [] if queue.part else [queue.table]
    return object_names.of(database.product, queue)


def adopted(database: Database) -> list[Queue]:
    """Blocking."""
    with database.transaction("read the catalog", read_only=True) as connection:
        known = catalog.queues(connection)
    return [queue for queue in known if queue.kind is Kind.ADOPTED]


def columns(database: Database, table: CandidateTable) -> Sequence[Column]:
    """The table's columns, in their order. Blocking."""
    with database.transaction("list the columns", read_only=True) as connection:
        return relations.columns(connection, table.schema, table.name)


def candidate(table: CandidateTable, of: Design, roles: Mapping[str, str]) -> Queue:
    """The queue that the table would be."""
    given = {role: column for role, column in roles.items() if column}
    return Queue(table.schema, table.name, of, {}, given, kind=Kind.ADOPTED)


def preview_of_library(
    database: Database,
    discovered_table: discovery.DiscoveredTable,
    name: str,
    part: str,
    masks: Masks = (),
) -> CandidateQueue:
    """The same for a library's table. Blocking; errors are in the preview."""
    of, table = discovered_table.of, discovered_table.table
    queue = discovery.queue_of(of, table, name, table.queue or part)
    try:
        with database.transaction("read a library's table", read_only=True) as connection:
            queue = discovery.candidate(connection, of, table, name, part)
    except ConsoleError as error:
        return CandidateQueue(queue, errors=(error,))
    return preview(database, queue, masks)


def preview(database: Database, queue: Queue, masks: Masks = ()) -> CandidateQueue:
    """Read a table as the queue that it would be. Blocking; errors are in the preview."""
    errors: list[ConsoleError] = []
    messages: tuple[Message, ...] = ()
    figures = None
    try:
        with database.transaction("read who sees its rows", read_only=True) as connection:
            (queue,) = catalog.with_row_filters(connection, [queue])
        page = read_page(database, queue, limit=SHOWN, payload_bytes=_PAYLOAD_BYTES, masks=masks)
        messages = page.messages
    except ConsoleError as error:
        errors.append(error)
    try:
        (sample,) = take_sample(database, only=[queue]).queues
        figures = snapshot(sample, database.label)
    except ConsoleError as error:
        errors.append(error)
    return CandidateQueue(queue, messages, figures, tuple(errors))


def guess(of: Design, columns: Sequence[Column]) -> dict[str, str]:
    """Role -> the likely column, by its name alone; the operator decides."""
    guessed: dict[str, str] = {}
    for role in roles_of(of):
        names = {_bare(name) for name in (*_USUAL.get(role, ()), of.roles.get(role, role), role)}
        for column in columns:
            if _bare(column.name) in names and column.name not in guessed.values():
                guessed[role] = column.name
                break
    return guessed


def _bare(name: str) -> str:
    return re.sub(r"[^a-z]", "", name.lower())


_USUAL: Mapping[str, tuple[str, ...]] = {
    "id": ("job_id", "message_id", "msg_id", "key", "pk"),
    "pushed_at": ("created_at", "created", "enqueued_at", "inserted_at", "time", "queued_at"),
    "due_at": ("due", "run_at", "scheduled_at", "not_before", "visible_at", "vt", "available_at"),
    "claimed_at": ("started_at", "locked_at", "processing_started_at", "taken_at", "started"),
    "claimed_by": ("locked_by", "worker", "worker_id", "owner", "consumer"),
    "status": ("state",),
    "error": ("errors", "last_error", "error_message", "failure"),
    "attempts": ("tries", "retries", "retry_count", "read_ct", "attempt"),
    "payload": ("body", "message", "data", "args", "content", "text_data", "msg"),
    "done_at": ("finished_at", "completed_at", "processed_at"),
}

WHAT_ROLES_ARE: Mapping[str, str] = {
    "id": "identifies a message",
    "pushed_at": "when it was pushed",
    "due_at": "not to be popped before",
    "claimed_at": "when a consumer claimed it; empty: ready",
    "claimed_by": "which consumer claimed it",
    "status": "0 pending 1 processing 2 processed 3 archived 4 error",
    "error": "why it failed; empty: no error",
    "attempts": "how often it was popped",
    "payload": "the message itself",
    "done_at": "when it was done, or failed",
    "slot": "the ring's slots, from 0",
    "reference_count": "0: the slot is free",
    "push_sequence": "name of the sequence that push draws from",
    "pop_sequence": "name of the sequence that pop draws from",
    "size": "how many slots the ring has",
}
_TIMES = ("pushed_at", "due_at", "claimed_at", "done_at")
_NUMBERS = ("status", "attempts", "slot", "reference_count")
_RING_ROLES = ("slot", "reference_count", "push_sequence", "pop_sequence", "size")
WITHOUT: Mapping[str, str] = {
    "id": "no requeue, release or purge",
    "pushed_at": "no age, no filter older= and newer=",
    "claimed_at": "no stuck claims, no release",
    "claimed_by": "no owners of claims: none is ever proven disconnected",
    "error": "no errors, no requeue",
    "attempts": "no poisoned messages are found",
    "payload": "payloads are not shown",
    "done_at": "no time at which a message failed or was done",
    "due_at": "scheduled messages count as ready",
    "status": "no states",
}
"""What is missing without a role."""


def roles_of(of: Design) -> tuple[str, ...]:
    """The roles that a table of the design can have, required ones first."""
    if "slot" in of.needed_roles:
        return (*("slot", "id", "payload"), *_RING_ROLES[1:], "pushed_at")
    return (*of.needed_roles, *(role for role in of.roles if role not in of.needed_roles))


def is_needed(of: Design, role: str) -> bool:
    return role in of.needed_roles or (role == "size" and "slot" in of.needed_roles)


def verbs(queue: Queue) -> tuple[list[str], dict[str, str]]:
    """The verbs that the queue would have; and those that it would not: name -> reason."""
    able = ["status", "doctor"]
    unable: dict[str, str] = {}
    for verb in ("requeue", "release", "purge", "maintain", "end-session"):
        if verb not in queue.verbs and verb not in queue.design.refusals:
            continue
        if why := unavailable(queue, verb):
            unable[verb] = why
        else:
            able.append(verb)
    return able, unable


_SIZE = re.compile(r"0*[1-9][0-9]{0,17}")


def adopt(
    database: Database,
    schema: str,
    table: str,
    of: Design,
    roles: Mapping[str, str],
    search_path: str = "",
    *,
    consumers: str | None = None,
) -> Queue:
    """Record the table as a queue, once every mapped column is checked. Its data is not touched.

    `search_path`: for its triggers; by default that of its owner. `consumers`: as the design's
    option.
    """
    _check_roles(of, roles)
    for name in (schema, table, *roles.values()):
        _check_name(database.product, name)
    options = {} if consumers is None else {"consumers": of.option("consumers").check(consumers)}
    queue = Queue(schema, table, of, options, dict(roles), kind=Kind.ADOPTED)
    subject = audit.Subject.of(database, queue, "adopt", detail=f"design {of.name}")
    with audit.recorded(database, f"adopt the table {table!r}", subject) as act:
        connection = act.connection
        prepare_catalog(connection)
        require_schema(connection, schema)
        _require_new(connection, queue)
        _check_columns(connection, queue)
        kinds = {relation.kind for relation in relations.named(connection, schema, [table])}
        if "a view" in kinds:
            queue = replace(queue, options={**options, "view": "yes"})
        queue = _with_search_path(connection, queue, search_path)
        record(connection, queue)
    return queue


def require_trusted(of: Design) -> None:
    """RefusedError for a user's own preset file that is not trusted."""
    if not of.trusted:
        raise RefusedError(
            f"Nothing can be adopted with the preset {of.name!r}.",
            why="It is your own file, and you have not trusted it in its present form.",
            next_step="Read it and check it, then: dbq-console preset trust "
            + shlex.quote(of.file),
        )


def adopt_library(
    database: Database,
    of: Design,
    name: str,
    *,
    schema: str | None = None,
    table: str | None = None,
    part: str = "",
    search_path: str = "",
) -> Queue:
    """Record a library's table as a queue. Its data is not touched.

    `part`: only this one of the queues in its table; by default the name, where each queue has its
    own table. `search_path`: for its functions and triggers.
    """
    product = database.product
    discovery.preset(of.name, product.name)
    require_trusted(of)
    for text in (name, part, schema, table):
        if text or text is name:
            _check_name(product, text or "")
    if of.table_each:
        part = part or name
    doing = f"adopt the queue {name!r}"
    with database.transaction(doing, read_only=True) as connection:
        of, library_table = discovery.choose(connection, of, schema=schema, table=table, part=part)
        queue = discovery.candidate(connection, of, library_table, name, part)
    detail = f"preset {of.name}" + (f", only {queue.part}" if queue.part else "")
    detail += f", SHA-256 {of.sha256}" if of.sha256 else ""
    with audit.recorded(database, doing, audit.Subject.of(database, queue, "adopt", detail)) as act:
        prepare_catalog(act.connection)
        _require_new(act.connection, queue)
        queue = _with_search_path(act.connection, queue, search_path)
        record(act.connection, queue)
    return queue


def _with_search_path(connection: Connection, queue: Queue, given: str) -> Queue:
    """With the path under which the table's triggers and functions run, on an engine that has one:
    later changes of its owner's settings do not change what a verb does."""
    if not sql.has(connection, "actions.declared_path"):
        if given:
            raise UsageError(f"{product_of(connection).title} has no search path.")
        return queue
    queue = replace(queue, options={**queue.options, **({"search_path": given} if given else {})})
    scope = queue.scope(connection)
    path = sql.value(connection, str, f"{queue.design.name}.declared_path", scope)
    return replace(queue, options={**queue.options, "search_path": path})


def _require_new(connection: Connection, queue: Queue) -> None:
    """UsageError where the name is taken, or a library's queue is adopted under another name."""
    location = (queue.schema, queue.table, queue.part)
    for known in catalog.queues(connection):
        if (known.schema, known.name) == (queue.schema, queue.name):
            raise UsageError(
                f"There is already a queue named {queue.name!r} in schema {queue.schema!r}.",
                why=f"It is {known.kind.value}, of the design {known.design.name}.",
                next_step=f"To map it again: dbq-console forget {shlex.quote(queue.name)}, "
                "then adopt again.",
            )
        if queue.design.library and (known.schema, known.table, known.part) == location:
            raise UsageError(
                f"That is already adopted, as {known.name!r}.",
                next_step=f"For another name: dbq-console forget {shlex.quote(known.name)}, "
                "then adopt again.",
            )


def _check_name(product: Product, name: str) -> None:
    """UsageError for an invalid name, which a server might truncate to another one."""
    try:
        too_long = product.name_length(name) > product.name_limit
    except UnicodeEncodeError:
        raise UsageError(f"The name {name!r} is not valid Unicode.") from None
    if too_long or "\0" in name or not name:
        raise UsageError(
            f"Nothing can have the name {name!r}.",
            why=f"{product.title} allows names of 1 to {product.name_limit} {product.name_unit}, "
            "without NUL.",
        )


def _check_roles(of: Design, roles: Mapping[str, str]) -> None:
    ring = "slot" in of.needed_roles
    known = [role for role in WHAT_ROLES_ARE if ring or role not in _RING_ROLES]
    for role in roles:
        if role not in known:
            raise UsageError(
                f"The design {of.name} has no role {role!r}.",
                next_step=f"Roles: {', '.join(known)}.",
            )
    needed = (*of.needed_roles, *(("size",) if ring else ()))
    missing = [role for role in needed if role not in roles]
    if missing:
        raise UsageError(
            f"The design {of.name} needs the roles: {', '.join(missing)}.",
            next_step="Map their columns: " + " ".join(f"--map {role}=COLUMN" for role in missing),
        )
    size = roles.get("size")
    if size is not None and not _SIZE.fullmatch(size):
        raise UsageError(
            f"The role size takes the ring's number of slots, not {size!r}.",
            next_step="Example: --map size=10000",
        )


def _check_columns(connection: Connection, queue: Queue) -> None:
    columns = relations.columns(connection, queue.schema, queue.name)
    if not columns:
        raise UsageError(
            f"There is no table {queue.name!r} in schema {queue.schema!r}.",
            next_step="Check the name (it is taken whole, never split at dots) and --schema.",
        )
    by_name = {column.name: column for column in columns}
    for role, column in queue.roles.items():
        if role in {"push_sequence", "pop_sequence"}:
            _check_sequence(connection, queue, role, column)
        elif role != "size" and column not in by_name:
            raise UsageError(
                f"The table {queue.name!r} has no column {column!r} for the role {role}.",
                next_step=f"Its columns: {', '.join(sorted(by_name))}.",
            )
        elif role != "size":
            _check_type(connection, queue, role, by_name[column])


_SORTED = "by which rows can be sorted: a whole number, a text or a UUID, for example"


def _check_type(connection: Connection, queue: Queue, role: str, column: Column) -> None:
    """UsageError for a type with which a role's statements fail, or mean nothing."""
    product = product_of(connection)
    serving: tuple[str, ...] = ()
    if role in _TIMES:
        serving = (*product.time_types,)
    elif role in _NUMBERS:
        serving = (*product.number_types,)
    elif role != "id" or _is_sorted(connection, queue, column):
        return
    if column.base_type in serving:
        return
    below = "" if column.type.startswith(column.base_type) else f", a {column.base_type}"
    raise UsageError(
        f"The column {column.name!r} cannot be the {role} of a queue.",
        why=f"It is {column.type}{below}; the {role}: {WHAT_ROLES_ARE[role]}.",
        next_step="What serves is a column "
        + (f"of one of the types {', '.join(serving)}." if serving else f"{_SORTED}."),
    )


def _is_sorted(connection: Connection, queue: Queue, column: Column) -> bool:
    if column.base_type in product_of(connection).unsorted_types:
        return False
    return KeyType.read(connection, queue, column.name).operators is not None


def _check_sequence(connection: Connection, queue: Queue, role: str, name: str) -> None:
    named = relations.named(connection, queue.schema, [name])
    if not any(relation.kind == "a sequence" for relation in named):
        raise UsageError(
            f"There is no sequence {name!r} in schema {queue.schema!r} for the role {role}."
        )
