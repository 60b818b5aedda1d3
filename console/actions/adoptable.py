"""What could be adopted: tables that are no queue yet, their columns, and what a mapping gives."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from console import catalog, sql
from console.actions import libraries, works
from console.catalog import Kind, Queue
from console.designs import Design
from console.engines import Database
from console.errors import ConsoleError
from console.monitor import QueueSnapshot, snapshot, take_sample
from console.monitor.message import Masks, Message
from console.monitor.messages import look

MOST_TABLES = 2_000
SHOWN = 5
"""Messages of a preview."""
_PAYLOAD_BYTES = 120


@dataclass(frozen=True)
class Table:
    """A table as the engine's catalog has it."""

    schema: str
    name: str
    rows_estimated: int | None
    """None: the engine does not know."""


@dataclass(frozen=True)
class Column:
    """One column of a table."""

    name: str
    type: str


@dataclass(frozen=True)
class Preview:
    """A table seen as a queue, with nothing recorded."""

    queue: Queue
    messages: tuple[Message, ...] = ()
    figures: QueueSnapshot | None = None
    errors: tuple[ConsoleError, ...] = ()
    """What could not be looked at with this mapping."""


def tables(database: Database) -> list[Table]:
    """The tables that are no queue's yet, by schema and name. Waits."""
    product = database.product
    with database.transaction("list the tables", read_only=True) as connection:
        statement = sql.statements(product.name, "catalog")["tables"]
        found = sql.fetch(connection, Table, statement, sql.Scope(), n=MOST_TABLES)
        known = catalog.queues(connection, product)
    taken = {(q.schema, name) for q in known for name in _names(database, q)}
    return [table for table in found if (table.schema, table.name) not in taken]


def _names(database: Database, queue: Queue) -> list[str]:
    if queue.kind is Kind.ADOPTED:
        return [] if queue.part else [queue.table]
    return catalog.object_names(database.product, queue)


def adopted(database: Database) -> list[Queue]:
    """The queues that were adopted. Waits."""
    with database.transaction("read the catalog", read_only=True) as connection:
        known = catalog.queues(connection, database.product)
    return [queue for queue in known if queue.kind is Kind.ADOPTED]


def columns(database: Database, table: Table) -> list[Column]:
    """The table's columns, in their order. Waits."""
    statement = sql.statements(database.product.name, "catalog")["columns"]
    values = {"schema": table.schema, "table": table.name}
    with database.transaction("list the columns", read_only=True) as connection:
        return sql.fetch(connection, Column, statement, sql.Scope(), **values)


def candidate(table: Table, of: Design, roles: Mapping[str, str]) -> Queue:
    """The queue that the table would be."""
    given = {role: column for role, column in roles.items() if column}
    return Queue(table.schema, table.name, of, {}, given, kind=Kind.ADOPTED)


def preview_of_library(
    database: Database, found: libraries.Found, name: str, part: str, masks: Masks = ()
) -> Preview:
    """The same of what a library keeps. Waits; what fails is in the preview."""
    of, table = found.of, found.table
    queue = libraries.queue_of(of, table, name, table.queue or part)
    try:
        with database.transaction("look at a library's table", read_only=True) as connection:
            queue = libraries.candidate(connection, database.product, of, table, name, part)
    except ConsoleError as error:
        return Preview(queue, errors=(error,))
    return preview(database, queue, masks)


def preview(database: Database, queue: Queue, masks: Masks = ()) -> Preview:
    """Look at a table as the queue that it would be. Waits; what fails is in the preview."""
    errors: list[ConsoleError] = []
    messages: tuple[Message, ...] = ()
    figures = None
    try:
        page = look(database, queue, limit=SHOWN, payload_bytes=_PAYLOAD_BYTES, masks=masks)
        messages = page.messages
    except ConsoleError as error:
        errors.append(error)
    try:
        (sample,) = take_sample(database, only=[queue]).queues
        figures = snapshot(sample, database.label)
    except ConsoleError as error:
        errors.append(error)
    return Preview(queue, messages, figures, tuple(errors))


def guess(of: Design, found: Sequence[Column]) -> dict[str, str]:
    """Which column likely plays which role, by its name alone; the operator decides."""
    guessed: dict[str, str] = {}
    for role in roles_of(of):
        names = {_bare(name) for name in (*_USUAL.get(role, ()), of.roles.get(role, role), role)}
        for column in found:
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

RING_ROLES = ("slot", "id", "payload", "reference_count", "push_sequence", "pop_sequence", "size")
WHAT_ROLES_ARE: Mapping[str, str] = {
    "id": "tells one message from another",
    "pushed_at": "when it was pushed",
    "due_at": "not to be popped before",
    "claimed_at": "when a consumer took it; empty: ready",
    "claimed_by": "which consumer took it",
    "status": "0 pending 1 processing 2 processed 3 archived 4 error",
    "error": "why it failed; empty: it did not",
    "attempts": "how often it was tried",
    "payload": "the message itself",
    "done_at": "when it was done, or failed",
    "slot": "the ring's slots, from 0",
    "reference_count": "0: the slot is free",
    "push_sequence": "name of the sequence that push draws from",
    "pop_sequence": "name of the sequence that pop draws from",
    "size": "how many slots the ring has",
}
WITHOUT: Mapping[str, str] = {
    "id": "no requeue, release or purge",
    "pushed_at": "no age, no filter older= and newer=",
    "claimed_at": "no stuck, no release",
    "claimed_by": "no owner of a claim, so none is ever proven gone",
    "error": "no errors, no requeue",
    "attempts": "a poisoned message cannot be told",
    "payload": "payloads are not shown",
    "done_at": "no time of failing or finishing",
    "due_at": "what is scheduled cannot be told",
    "status": "the states cannot be told",
}
"""What a role that is not mapped costs."""


def roles_of(of: Design) -> tuple[str, ...]:
    """The roles that a table of the design can have mapped, those that it must first."""
    if "slot" in of.needed_roles:
        return (*RING_ROLES, "pushed_at")
    return (*of.needed_roles, *(role for role in of.roles if role not in of.needed_roles))


def is_needed(of: Design, role: str) -> bool:
    """Whether the design cannot do without it."""
    return role in of.needed_roles or (role == "size" and "slot" in of.needed_roles)


def verbs(queue: Queue) -> tuple[list[str], dict[str, str]]:
    """What could be done with the queue, and what not with the reason."""
    able = ["status", "doctor"]
    unable: dict[str, str] = {}
    for verb in ("requeue", "release", "purge", "maintain", "end-session"):
        if verb not in queue.verbs and verb not in queue.design.refusals:
            continue
        if why := works.why_not(queue, verb):
            unable[verb] = why
        else:
            able.append(verb)
    return able, unable
