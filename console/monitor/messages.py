"""The messages of a queue, a page at a time, filtered and ordered on the server.

A page ends with the key of the next one. If a filter matches little, it ends when a bound is
reached, and says so.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from console import sql
from console.catalog import Kind, Queue
from console.engines import Database, Session
from console.errors import TooSlowError, UsageError
from console.monitor.filters import NOTHING, Filters
from console.monitor.message import (
    ERROR_LENGTH,
    MASK_MARGIN,
    Masks,
    Message,
    MessageQuery,
    MessageRow,
    PastAttempt,
    masked,
)
from console.monitor.scan_query import MessageSource, Search, fetch
from console.monitor.scans import (
    SINCE,
    By,
    Scan,
    ScanKey,
    number_of,
    read_key,
    scans_by_id,
    scans_for,
    scans_of,
)

if TYPE_CHECKING:
    from sqlalchemy import Connection

DEFAULT_LIMIT = 50
MOST_MESSAGES = 1_000
"""On one page."""
TRANSACTION_SECONDS = 0.5
"""How long several steps share a transaction, which keeps others from altering the table."""


@dataclass(frozen=True)
class Page:
    """Messages in the order in which their queue is scanned."""

    queue: Queue
    messages: tuple[Message, ...]
    next: ScanKey | None
    """Where the next page begins; None: there is none, or no order."""
    complete: bool
    """False: a bound was reached before the page was full: there may be more."""


def read_page(
    database: Database,
    queue: Queue,
    filters: Filters = NOTHING,
    *,
    limit: int = DEFAULT_LIMIT,
    after: str | None = None,
    reverse: bool = False,
    payload_bytes: int | None = None,
    masks: Masks = (),
) -> Page:
    """The page after the key `after`. `payload_bytes`: read the beginning of payloads.

    Raises UsageError if no message of the queue can match.
    """
    check(queue, filters)
    query = MessageQuery(filters, min(limit, MOST_MESSAGES), reverse, payload_bytes, tuple(masks))
    with message_session(database, queue) as session:
        with session.transaction(read_task(queue)) as connection:
            source = MessageSource.of(connection, queue)
        check_payload(source, filters)
        query = replace(query, filters=source.normalize(filters))
        if len(query.filters.ids) > 1:
            return _read_each(database, session, source, query, after)
        search = Search(source, query, after)
        run_search(database, session, source, search)
        messages = _with_histories(database, session, source, query, search.messages)
    return Page(queue, tuple(messages), search.next, search.complete)


def _read_each(
    database: Database,
    session: Session,
    source: MessageSource,
    query: MessageQuery,
    after: str | None,
) -> Page:
    """Several ids in their given order, which has no key for a next page."""
    if after is not None:
        raise UsageError("A list of several ids has no order to continue in.")
    messages: list[Message] = []
    complete = True
    for filters in query.filters.each:
        if len(messages) >= query.limit:
            return Page(source.queue, tuple(messages), None, complete=False)
        message_query = replace(query, filters=filters, limit=query.limit - len(messages))
        search = Search(source, message_query, None)
        run_search(database, session, source, search)
        messages += _with_histories(database, session, source, message_query, search.messages)
        complete = complete and search.complete and search.next is None
    return Page(source.queue, tuple(messages), None, complete)


def run_search(database: Database, session: Session, source: MessageSource, search: Search) -> None:
    """Until it is finished, in short transactions."""
    while not search.finished:
        with session.transaction(read_task(source.queue)) as connection:
            source.begin_read(connection, database)
            started = time.monotonic()
            while not search.finished and time.monotonic() - started < TRANSACTION_SECONDS:
                search.step(connection)


def _with_histories(
    database: Database,
    session: Session,
    source: MessageSource,
    query: MessageQuery,
    messages: Sequence[Message],
) -> Sequence[Message]:
    """Adds their history, if messages are read by id and the queue keeps it."""
    if not (query.filters.ids and source.queue.keeps_history and messages):
        return messages
    with session.transaction(read_task(source.queue)) as connection:
        source.begin_read(connection, database)
        return [_with_history(connection, source, message, query.masks) for message in messages]


@dataclass(frozen=True)
class _PastRow:
    at: str | None
    claimed_by: str | None
    attempts: str | None
    error: str | None


def _with_history(
    connection: Connection, source: MessageSource, message: Message, masks: Masks
) -> Message:
    """Adds its earlier attempts, if its queue keeps them: those of its subscriber."""
    queue = source.queue
    if not queue.keeps_history or message.id is None:
        return message
    scan, _ = _scan_and_key(queue, message.key)
    if scan.of_slots:  # not popped yet; whoever else has it in hand has popped its own
        return replace(message, history=())
    queue = queue.of(scan.subscriber) if scan.subscriber else queue
    scope = queue.scope_of("history", source.product)
    rows = sql.rows(connection, _PastRow, source.statement_name("history"), scope, id=message.id)
    past = (PastAttempt.of(**vars(past_row)) for past_row in rows)
    kept = (replace(one, error=_masked_error(one.error, masks)) for one in past)
    return replace(message, history=tuple(kept))


def _masked_error(error: str | None, masks: Masks) -> str | None:
    """Without the end: what should be masked may be cut off there."""
    if error is None or not masks:
        return error
    return masked(error, masks)[: ERROR_LENGTH - MASK_MARGIN]


def message(
    database: Database,
    queue: Queue,
    key: str,
    *,
    payload_bytes: int | None = None,
    masks: Masks = (),
) -> Message | None:
    """The message at a page's key; None: no longer there in that state."""
    check(queue, NOTHING)
    scan, position = _scan_and_key(queue, key)
    if not position.id:
        raise UsageError(f"{key!r} is not the key of a message in the queue {queue.name!r}.")
    query = MessageQuery(
        NOTHING, 1, payload_bytes=payload_bytes, masks=tuple(masks), full_error=True
    )
    with (
        message_session(database, queue) as session,
        session.transaction(read_task(queue)) as connection,
    ):
        source = MessageSource.of(connection, queue)
        source.check(scan, position)
        source.begin_read(connection, database)
        request = query.scan_request(scan, after=position, exactly=True)
        if scan.chunks:
            number = number_of(position)
            slots = source.extent(connection).slots
            request = replace(request, chunk=(number, number), slots=slots)
        rows = fetch(connection, source, request, MessageRow, "matching")
        found = next((query.message(row, scan) for row in rows if row.matches), None)
        return None if found is None else _with_history(connection, source, found, masks)


def follow(
    database: Database,
    queue: Queue,
    key: str,
    *,
    payload_bytes: int | None = None,
    masks: Masks = (),
) -> Message | None:
    """The message at the key or, if an index finds it by its id, in another state by now.

    None: it does not exist any more, or that is not known.
    """
    found = message(database, queue, key, payload_bytes=payload_bytes, masks=masks)
    scan, position = _scan_and_key(queue, key)
    by_id = next((one for one in scans_by_id(queue) if one.subscriber == scan.subscriber), None)
    if found is not None or by_id in {None, scan} or scan.by not in {By.ID, By.TIME}:
        return found
    there = ScanKey(by_id.name, id=position.id).text if by_id else key
    return message(database, queue, there, payload_bytes=payload_bytes, masks=masks)


def _scan_and_key(queue: Queue, key: str) -> tuple[Scan, ScanKey]:
    """Reads a key; that of a page filtered by id may be in one of `scans_by_id`."""
    scans = scans_of(queue)
    scans = (*scans, *(scan for scan in scans_by_id(queue) if scan not in scans))
    at, position = read_key(key, scans)
    return scans[at], position


def check(queue: Queue, filters: Filters) -> None:
    """UsageError for filters that no message of the queue can match, or that do not apply."""
    if queue.kind is Kind.ARCHIVE:
        raise UsageError(f"Only the archive of {queue.name!r} is left: it has no messages.")
    filters.without(
        "messages",
        limit="It limits what an action takes; for a page use --limit.",
        keep_newest="It is for actions that remove messages.",
    )
    if filters.state is not None and filters.state not in queue.states:
        raise UsageError(
            f"The queue {queue.name!r} has no messages in a state {filters.state!r}.",
            next_step=f"The states of the design {queue.design.name}: {', '.join(queue.states)}.",
        )
    scans = scans_for(queue, filters)
    roles = {role for scan in scans for role in scan.roles(queue)}
    needed = []
    if filters.state == "error" or filters.errors or filters.error_group:
        needed.append("error")
    if filters.claimed_by is not None:
        needed.append("claimed_by")
    if filters.ids:
        needed.append("id")
    if filters.older is not None or filters.newer is not None:
        needed += [SINCE[scan.state] for scan in scans if scan.state]
    for role in needed:
        if role not in roles:
            raise _no_role(queue, role)


def _no_role(queue: Queue, role: str) -> UsageError:
    what = f"The messages of {queue.name!r} have no {role}."
    if queue.kind is Kind.ADOPTED and role in queue.design.roles:
        return UsageError(
            what,
            why=f"It was adopted without a column for the role {role}.",
            next_step=f"Forget it and adopt it again with --map {role}=COLUMN, if there is one.",
        )
    return UsageError(what, why=f"Messages of the design {queue.design.name} have none.")


def check_payload(source: MessageSource, filters: Filters) -> None:
    """UsageError for a path in a payload that is not JSON."""
    if filters.payload and source.payload != "json":
        raise UsageError(
            f"The queue {source.queue.name!r} has no payload with paths.",
            why=f"Its payload is {source.payload or 'not known'}: payload.PATH=VALUE needs JSON.",
        )


def read_task(queue: Queue) -> str:
    """Completes "Could not ..."."""
    return f"read the messages of {queue.name!r}"


@contextmanager
def message_session(database: Database, queue: Queue) -> Iterator[Session]:
    """A connection to read messages; a time-out says which queries are cheaper."""
    try:
        with database.session(read_task(queue), read_only=True) as session:
            yield session
    except TooSlowError as error:
        raise TooSlowError(
            error.what,
            why=error.why,
            next_step="An id, a state or an age in a state is found by an index, in the tables "
            "that this console installs; the text of payloads and errors is not.",
        ) from error
