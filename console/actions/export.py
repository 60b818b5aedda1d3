"""Export a queue's messages to a file, or reveal one without its masks.

An export writes page after page, at a bounded rate, into FILE.partial, with its progress in
FILE.partial.state. The same call again resumes after the last whole page, with the first call's
cut-off: a message is in the file at most once; one that changed its state meanwhile may be missing.

Exports with payloads and reveals are in the audit before anybody sees the data.
"""

from __future__ import annotations

import csv
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from itertools import accumulate
from pathlib import Path
from typing import TextIO

from console import clock, sql
from console.catalog import Queue, audit
from console.engines import Database, Session
from console.errors import BusyError, ConnectionFailedError, ConsoleError, RefusedError, UsageError
from console.formats import numbered
from console.monitor.filters import Filters
from console.monitor.message import Masks, Message, MessageQuery
from console.monitor.messages import (
    check,
    check_payload,
    message,
    message_session,
    read_task,
    run_search,
)
from console.monitor.scan_query import MessageSource, Search
from console.rights import Rights

FORMS = (".jsonl", ".csv")
RATE = 2_000.0
"""Default messages a second."""
PAYLOAD_BYTES = 1_000_000
"""Default bytes of each payload."""
_PAGE = 4_000
_PAGES_PER_SECOND = 4
_ERRORS = 500
"""Of a page that may have error texts, each of up to `FULL_ERROR_LENGTH`."""
_PAGE_BYTES = 30_000_000
"""All payloads of a page, at most: a page is in memory twice, as the driver's text and as ours."""
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""A spreadsheet may run a cell that starts with one of these."""


@dataclass(frozen=True)
class ExportRequest:
    """`payload_bytes`: of each payload, at most; None: no payloads."""

    queue: Queue
    filters: Filters
    path: Path
    payload_bytes: int | None = None
    masks: Masks = ()
    rate: float = RATE

    @property
    def page(self) -> int:
        """Messages of a page, at most; fewer where each may have a long error text."""
        errors = "error" in self.queue.states and self.filters.state in {None, "error"}
        most = min(_PAGE, _ERRORS) if errors else _PAGE
        return max(1, min(most, round(self.rate / _PAGES_PER_SECOND)))

    def beginning(self, messages: int) -> int | None:
        """Bytes of each payload, so that all of so many messages may be in one page."""
        if self.payload_bytes is None:
            return None
        return min(self.payload_bytes, _PAGE_BYTES // messages)

    def fitting(self, messages: Sequence[Message]) -> int:
        """How many of these, from the first on, may be in one page; one at the least."""
        most = self.payload_bytes or 0
        sizes = (most if (size := m.payload_bytes) is None else min(size, most) for m in messages)
        return max(1, sum(total <= _PAGE_BYTES for total in accumulate(sizes)))

    def as_json(self, connection: str) -> dict[str, object]:
        """What must be the same for an export to be resumed."""
        masks = "\n".join(f"{mask.flags} {mask.pattern}" for mask in self.masks)
        return {
            "connection": connection,
            "schema": self.queue.schema,
            "queue": self.queue.name,
            "filters": list(self.filters.words),
            "payload_bytes": self.payload_bytes,
            "masks": hashlib.sha256(masks.encode()).hexdigest(),
        }


@dataclass
class ExportState:
    """How far an export is, as its file beside it has it."""

    of: dict[str, object]
    cutoff: str
    """In ISO 8601."""
    part: int = 0
    """Index of the current search: one for each id filter."""
    after: str | None = None
    bytes: int = 0
    messages: int = 0
    payloads_cut: int = 0
    complete: bool = True
    """False: the server hides messages from this login."""


@dataclass(frozen=True)
class Exported:
    path: Path
    progress: ExportState
    resumed: int
    """Messages that were in the file before."""
    only_locally: bool
    """Audited on this machine only: the database's audit could not be written."""

    def as_json(self) -> dict[str, object]:
        progress = asdict(self.progress)
        names = ("messages", "payloads_cut", "complete", "cutoff")
        return {"file": str(self.path), "resumed": self.resumed} | {n: progress[n] for n in names}


def export(
    database: Database,
    request: ExportRequest,
    *,
    on_progress: Callable[[int], None] = lambda _: None,
) -> Exported:
    """Write the file, or the rest of it. `on_progress` gets the messages in it after each page.

    UsageError for an impossible request or an existing file; RefusedError where another export
    writes it, or the audit cannot record that payloads are read.
    """
    queue, path = request.queue, request.path
    if path.suffix not in FORMS:
        raise UsageError(
            f"No export can be written to {path}.",
            next_step=f"Its name must end in {' or '.join(FORMS)}.",
        )
    check(queue, request.filters)
    with _Partial(path) as partial, message_session(database, queue) as session:
        with session.transaction(read_task(queue)) as connection:
            source = MessageSource.of(connection, queue)
            now = sql.value(connection, datetime, "actions.server_time")
        check_payload(source, request.filters)
        progress = partial.begin(ExportState(request.as_json(database.label), now.isoformat()))
        before = progress.messages
        with _audited(database, request, progress) as only_locally:
            for count in _pages(database, session, source, request, partial, progress):
                on_progress(count)
            partial.finish()
    return Exported(path, progress, before, only_locally)


def _pages(
    database: Database,
    session: Session,
    source: MessageSource,
    request: ExportRequest,
    partial: _Partial,
    progress: ExportState,
) -> Iterator[int]:
    parts = source.normalize(request.filters).each
    cutoff = datetime.fromisoformat(progress.cutoff)
    with_payload = request.payload_bytes is not None
    limit = request.page
    while progress.part < len(parts):
        begun = time.monotonic()
        query = MessageQuery(
            parts[progress.part],
            limit,
            payload_bytes=request.beginning(limit),
            masks=tuple(request.masks),
            full_error=True,
            moment=cutoff,
        )
        search = Search(source, query, progress.after)
        run_search(database, session, source, search)
        limit = min(2 * limit, request.page)
        if query.payload_bytes != request.payload_bytes and any(
            _may_be_longer(message, query.payload_bytes or 0) for message in search.messages
        ):
            limit = request.fitting(search.messages)
            query = replace(query, limit=limit, payload_bytes=request.payload_bytes)
            search = Search(source, query, progress.after)
            run_search(database, session, source, search)
        if search.next is None and not search.complete and not source.hidden:
            raise UsageError(
                f"The messages of {request.queue.name!r} cannot be exported in full.",
                why="They have no order in which one page could follow another.",
                next_step="Select fewer with filters.",
            )
        progress.after = None if search.next is None else search.next.text
        progress.part += search.next is None
        progress.messages += len(search.messages)
        progress.payloads_cut += sum(message.payload_cut for message in search.messages)
        progress.complete = progress.complete and not source.hidden
        partial.write(search.messages, progress, with_payload=with_payload)
        yield progress.messages
        if progress.part < len(parts):
            read = max(search.read, len(search.messages))
            clock.sleep(read / request.rate - (time.monotonic() - begun))


def _may_be_longer(message: Message, read: int) -> bool:
    """Whether its payload may have more bytes than were read; masks can have shortened it."""
    if message.payload is None or message.payload_cut:
        return message.payload_cut
    return message.payload_bytes is None or message.payload_bytes > read


@contextmanager
def _audited(database: Database, request: ExportRequest, progress: ExportState) -> Iterator[bool]:
    """Audit an export of payloads before it begins and, with counts, after it; yields whether on
    this machine only."""
    if request.payload_bytes is None:
        yield False
        return
    queue, before = request.queue, progress.messages
    subject = audit.Subject(
        "export",
        queue.schema,
        queue.name,
        database.label,
        filters=request.filters.words,
        cutoff=datetime.fromisoformat(progress.cutoff).astimezone(UTC),
        detail=f"payloads into {request.path}",
    )
    record = audit_read(database, subject, refused="Nothing was exported.", ended=False)
    outcome = audit.Outcome.FAILED
    try:
        yield record is None
        outcome = audit.Outcome.DONE
    except KeyboardInterrupt:
        outcome = audit.Outcome.STOPPED
        raise
    finally:
        count = numbered(progress.messages - before, "message")
        detail = f"{count} with payloads into {request.path}"
        if record is None:
            audit.log_locally(subject, outcome, detail=detail)
        else:
            record.log_locally(outcome, audit.Ledger(), detail)
            # After a failure, its error is reported rather than this one.
            failing = outcome is not audit.Outcome.DONE
            quiet = suppress(ConsoleError) if failing else nullcontext()
            with quiet, database.transaction("end the export in the audit") as connection:
                record.end(connection, outcome, detail)


@dataclass
class _Partial:
    """The file while it is written, under an exclusive lock."""

    path: Path
    _descriptor: int = field(default=-1, init=False)
    _finished: bool = field(default=False, init=False)

    @property
    def _data(self) -> Path:
        return self.path.with_name(f"{self.path.name}.partial")

    @property
    def _state(self) -> Path:
        return self.path.with_name(f"{self.path.name}.partial.state")

    def __enter__(self) -> _Partial:
        """UsageError where the file exists, RefusedError where another export writes it."""
        self._require_new()
        with self._writing():
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
            self._descriptor = os.open(self._data, flags, 0o600)
        try:
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise RefusedError(f"Another export is writing {self.path}.") from error
            self._require_new()  # again: another export may have finished it meanwhile
        except BaseException:
            os.close(self._descriptor)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if not (self._finished or self._state.exists()):  # not one whole page
            self._data.unlink(missing_ok=True)
        os.close(self._descriptor)

    def _require_new(self) -> None:
        if self.path.exists():
            raise UsageError(
                f"{self.path} already exists.",
                next_step="Nothing was written: choose another name, or remove it.",
            )

    def begin(self, new: ExportState) -> ExportState:
        """The progress of an earlier call, to be resumed; else `new`."""
        export_state = new
        if self._state.exists() and os.fstat(self._descriptor).st_size:
            export_state = self._earlier(new)
        with self._writing():
            os.ftruncate(self._descriptor, export_state.bytes)  # a page that was not whole
            os.lseek(self._descriptor, 0, os.SEEK_END)
        return export_state

    def _earlier(self, new: ExportState) -> ExportState:
        try:
            export_state = ExportState(**json.loads(self._state.read_text()))
            same = (
                export_state.of == new.of
                and os.fstat(self._descriptor).st_size >= export_state.bytes
            )
        except (OSError, ValueError, TypeError, RecursionError):
            same = False
        if not same:
            raise UsageError(
                f"{self._data} belongs to another export.",
                why="The connection, the queue, the filters, the masks or the payloads differ.",
                next_step=f"Remove it and {self._state.name}, or choose another name.",
            )
        return export_state

    def write(
        self, messages: Sequence[Message], progress: ExportState, *, with_payload: bool
    ) -> None:
        """Write a page, then the progress."""
        rows = (message.as_json(with_payload=with_payload) for message in messages)
        beside = self._state.with_name(f"{self._state.name}.new")
        with self._writing():
            with open(self._descriptor, "a", encoding="utf-8", newline="", closefd=False) as data:
                if self.path.suffix == ".csv":
                    _write_csv(data, rows, head=progress.bytes == 0)
                else:
                    encode = json.JSONEncoder(ensure_ascii=False).encode
                    data.writelines(encode(row) + "\n" for row in rows)
            os.fsync(self._descriptor)
            progress.bytes = os.lseek(self._descriptor, 0, os.SEEK_CUR)
            descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "w") as file:
                json.dump(asdict(progress), file)
            beside.replace(self._state)

    def finish(self) -> None:
        """Rename the complete file to its final name."""
        self._require_new()
        with self._writing():
            self._data.rename(self.path)
            self._finished = True
            self._state.unlink()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ConsoleError(
                f"Could not write {self._data}.",
                why=f"{error.strerror or error}.",
                next_step="Once that is repaired, the same command continues after its last page.",
            ) from error


def write_csv(name: str, rows: Sequence[dict[str, object]]) -> Path:
    """A new file in the working directory, which only its user can read. ConsoleError."""
    path = Path(name)
    try:
        path = path.absolute()
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
            _write_csv(file, rows, head=True)
    except OSError as error:
        raise ConsoleError(
            f"Could not write {path}.",
            why=f"{error.strerror or error}.",
            next_step="Start the console in a folder that can be written to.",
        ) from error
    return path


def _write_csv(file: TextIO, rows: Iterable[dict[str, object]], *, head: bool) -> None:
    """A cell that a spreadsheet would run as a formula gets an apostrophe in front."""
    writer = csv.writer(file)
    for row in rows:
        if head:
            writer.writerow(row)
            head = False
        writer.writerow(map(_cell, row.values()))


def _cell(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


@dataclass(frozen=True)
class Revealed:
    """A message without masks."""

    message: Message | None
    """None: it is no longer in that state."""
    only_locally: bool
    """Audited on this machine only: the database's audit could not be written."""


def reveal(
    database: Database, queue: Queue, key: str, *, rights: Rights, payload_bytes: int | None = None
) -> Revealed:
    """Read the message at `key`, as a page of messages gave it, with nothing hidden.

    RefusedError without the rights of an operator, and where the audit cannot record it.
    """
    filters = (f"key={key}",)
    subject = audit.Subject(
        "reveal", queue.schema, queue.name, database.label, filters=filters, planned=1
    )
    if rights < Rights.OPERATOR:
        error = RefusedError(
            "Masked values are not shown.",
            why=f"That needs the right operator; this connection has {rights.word}.",
            next_step="Use a connection with more rights.",
        )
        audit.log_locally(subject, audit.Outcome.REFUSED, detail=str(error))
        raise error
    record = audit_read(database, subject, refused="Masked values are not shown.")
    found = message(database, queue, key, payload_bytes=payload_bytes)
    return Revealed(found, record is None)


def audit_read(
    database: Database, subject: audit.Subject, *, refused: str, ended: bool = True
) -> audit.ActionRecord | None:
    """The database's record of it; None where only this machine's audit could be written.

    `ended`: record it as done. RefusedError, which begins with `refused`, where neither works.
    """
    doing = f"record in the audit that messages are read ({subject.verb})"
    outcome = audit.Outcome.DONE if ended else audit.Outcome.RUNNING
    try:
        with database.transaction(doing) as connection:
            record = audit.ActionRecord.begin(connection, subject)
            if ended:
                record.end(connection, outcome)
    except (ConnectionFailedError, BusyError, UsageError):
        raise
    except RefusedError as error:
        if not audit.log_locally(subject, outcome, detail=f"only here: {error.why}"):
            raise RefusedError(
                refused,
                why=f"The audit could not record it: {error.why}",
                next_step=f"Make sure that {audit.local_file()} can be written.",
            ) from error
        return None
    if ended:
        audit.log_locally(subject, outcome, action_id=record.action_id)
    return record
