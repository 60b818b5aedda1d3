"""An archive plan: cut-offs by the server's clock, and ranges of keys. Written to the lake once.

Also the archive of a queue, as its finished plans have it.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from console import sql
from console.catalog import Kind, Queue
from console.designs import DESIGNS
from console.errors import RefusedError, UsageError
from console.pipeline.lake import (
    MANIFESTS,
    DamagedError,
    Lake,
    connection_of,
    queue_of,
    queue_part,
)
from console.rollup_files import connection_part

if TYPE_CHECKING:
    from sqlalchemy import Connection


@dataclass(frozen=True)
class QueueArchive:
    connection: str
    schema: str
    queue: str
    files: dict[str, tuple[str, ...]]
    """Paths in the lake, by payload kind."""
    unfinished: int
    """Plans that are left out: their rows may still be in the database."""


def find_archive(
    lake: Lake, connection: str | None, schema: str | None, queue: str
) -> QueueArchive:
    """The archive of the one queue of that name. UsageError where there is none, or several."""
    found = [one for one in _queues(lake, connection) if one[2] == queue]
    if schema is not None:
        found = [one for one in found if one[1] == schema]
    if not found:
        raise UsageError(
            f"The lake {lake.location} has no archive of {queue!r}.",
            next_step=f"Create it with: dbq-console pipeline archive {queue}",
        )
    if len(found) > 1:
        names = ", ".join(f"{one[1]}.{one[2]} of {one[0]}" for one in found)
        raise UsageError(
            f"The lake {lake.location} has several archives of {queue!r}.",
            why=f"They are: {names}.",
            next_step="Choose one with --schema, and its connection with --from.",
        )
    return _archive_of(lake, *found[0])


def _queues(lake: Lake, connection: str | None) -> list[tuple[str, str, str]]:
    """Connection, schema and name of every queue that has plans."""
    root = f"{MANIFESTS}/archive"
    found = []
    for part in lake.names(root):
        of = connection_of(part)
        if connection is None or of == connection:
            found += [(of, *queue_of(name)) for name in lake.names(f"{root}/{part}")]
    return found


def _archive_of(lake: Lake, connection: str, schema: str, queue: str) -> QueueArchive:
    data = data_folder(connection, schema, queue)
    folder = f"{MANIFESTS}/{data}"
    by_kind: dict[str, tuple[str, ...]] = {}
    unfinished = 0
    for name, documents in _plans(lake, folder):
        if "done.json" not in documents:
            unfinished += 1
            continue
        plan = read(lake, f"{folder}/{name}")
        by_kind[plan.payload_kind] = by_kind.get(plan.payload_kind, ()) + _paths(
            lake, data, name, queue
        )
    files_by_kind = {kind: paths for kind, paths in by_kind.items() if paths}
    if not files_by_kind and unfinished:
        raise RefusedError(
            f"The archive of {queue!r} in {lake.location} is not finished.",
            why=f"{unfinished} of its plans were interrupted.",
            next_step=f"Finish it with: dbq-console pipeline archive {queue}",
        )
    return QueueArchive(connection, schema, queue, files_by_kind, unfinished)


def _plans(lake: Lake, folder: str) -> Iterator[tuple[str, list[str]]]:
    """The id of each plan of a queue, and the names in its folder. DamagedError where one has
    files but no plan, which is written first."""
    for name in lake.names(folder):
        documents = [] if name.startswith(("_", ".")) else lake.names(f"{folder}/{name}")
        documents = [one for one in documents if not one.startswith(("_", "."))]
        if documents and "plan.json" not in documents:
            raise DamagedError(
                f"The plan {name} of the lake is missing.",
                why=f"{lake.path(f'{folder}/{name}')} has files of it, but no plan.json: which "
                "rows they are about is not known.",
                next_step="Nothing was changed. Put plan.json back from a backup of the lake.",
            )
        if documents:
            yield name, documents


def _paths(lake: Lake, data: str, plan: str, queue: str) -> tuple[str, ...]:
    """The files in the folder `data` that a finished plan names. DamagedError."""
    path = f"{MANIFESTS}/{data}/{plan}/done.json"

    def damaged(why: str) -> DamagedError:
        return DamagedError(
            f"{lake.path(path)} is damaged.",
            why=why,
            next_step=f"Run dbq-console pipeline archive {shlex.quote(queue)} on this lake: it "
            "writes the file again, by what the database and the lake have.",
        )

    try:
        paths = lake.read_json(path).get("paths")
    except DamagedError as error:
        raise damaged(error.why) from error
    if paths is None:  # of an earlier version, which wrote to folders only
        files = lake.data_files(data)
        return tuple(file for file in files if file.rsplit("/", 1)[-1].startswith(f"{plan}-"))
    if not isinstance(paths, list) or not all(str(one).startswith(data) for one in paths):
        raise damaged("It does not say which files the archive has.")
    return tuple(paths)


RETENTION_SECONDS = 7 * 86_400.0
"""How long what was purged or archived stays in the database, for restore."""
RANGE_ROWS = 250_000
"""Each takes a connection of its own, which costs a task as much as some 20,000 rows."""
_LEAST_ROWS = 1_000
"""Of a smaller range the connection costs more than the rows."""
_FORMAT = "dbq-console archive plan"
_VERSION = 1
ARCHIVE, DONE = "archive", "done"
_SOURCES = (ARCHIVE, DONE)


@dataclass(frozen=True)
class ArchiveRequest:
    """Which rows may be archived: minimum ages in seconds."""

    older: float = 0.0
    """Of popped rows of the archive table."""
    retention: float = RETENTION_SECONDS
    """Of all its other rows."""
    done_older: float | None = None
    """Of done rows of the queue itself; None: none of them."""


@dataclass(frozen=True)
class Range:
    """The keys greater than `after`, up to `last`."""

    number: int
    source: str
    after: int
    last: int
    rows: int
    """When the plan was made."""

    def as_json(self) -> dict[str, Any]:
        return dict(vars(self))


@dataclass(frozen=True)
class RangeStep:
    """A row of the statement `step`: the next so many keys."""

    last: int | None
    rows_read: int
    rows: int
    oldest: datetime | None
    newest: datetime | None


@dataclass(frozen=True)
class ArchivePlan:
    """What it names is archived by it, and by no other plan."""

    id: str
    connection: str
    schema: str
    queue: str
    design: str
    payload_kind: str
    made_at: str
    cutoff: str
    """Of popped rows. All times are UTC without a zone."""
    before: str
    """Of all other rows of the archive table."""
    done_before: str
    """Of done rows of the queue; empty: none of them."""
    range_rows: int
    ranges: Sequence[Range]
    oldest: str = ""
    newest: str = ""
    database: str = ""
    """Its identity; empty in plans of earlier versions."""

    @property
    def rows(self) -> int:
        """When it was made."""
        return sum(part.rows for part in self.ranges)

    @property
    def cutoff_time(self) -> datetime:
        return datetime.fromisoformat(self.cutoff).replace(tzinfo=UTC)

    @property
    def made_time(self) -> datetime:
        return datetime.fromisoformat(self.made_at).replace(tzinfo=UTC)

    @property
    def folder(self) -> str:
        """Of the queue's data files."""
        return data_folder(self.connection, self.schema, self.queue)

    @property
    def manifests(self) -> str:
        """The folder of its manifests."""
        return f"{manifests_folder(self.connection, self.schema, self.queue)}/{self.id}"

    def data_path(self, date: str, number: int) -> str:
        """Of a range's file for one day, where files can replace each other."""
        return f"{self.folder}/date={date}/{self.stem(number)}.parquet"

    def stem(self, number: int) -> str:
        """The beginning of the names of a range's files."""
        return f"{self.id}-{number:06}"

    @property
    def done_path(self) -> str:
        """Written last: says which files the plan has in the lake."""
        return f"{self.manifests}/done.json"

    def range_path(self, number: int) -> str:
        return f"{self.manifests}/range-{number:06}.json"

    def values(self, source: str) -> dict[str, str]:
        """The cut-offs in a source's predicate."""
        return {
            "cutoff": self.cutoff,
            "before": self.before if source == ARCHIVE else self.done_before,
        }

    def as_json(self) -> dict[str, Any]:
        ranges = [part.as_json() for part in self.ranges]
        return {"format": _FORMAT, "version": _VERSION, **vars(self), "ranges": ranges}


def data_folder(connection: str, schema: str, queue: str) -> str:
    return f"archive/{connection_part(connection)}/{queue_part(schema, queue)}"


def manifests_folder(connection: str, schema: str, queue: str) -> str:
    return f"{MANIFESTS}/{data_folder(connection, schema, queue)}"


def scope(on: sql.HasDialect, queue: Queue, source: str, **values: str) -> sql.Scope:
    within = queue.scope(on, **values)
    return sql.Scope(within.values, {**within.options, "source": source}, within.roles)


def require_archive(queue: Queue, request: ArchiveRequest) -> None:
    """RefusedError or UsageError where the queue does not keep such rows."""
    if queue.kind is Kind.ADOPTED:
        raise RefusedError(
            f"The queue {queue.name!r} was adopted and has no archive.",
            why="The console deletes nothing for good from tables of other programs.",
        )
    if request.done_older is not None and (
        "done" not in queue.design.states or queue.kind is not Kind.INSTALLED
    ):
        keeping = [one.name for one in DESIGNS.values() if "done" in one.states]
        raise UsageError(
            f"The queue {queue.name!r} keeps no done rows.",
            why=f"Those are kept by: {', '.join(keeping)}.",
            next_step="Leave out --done-older.",
        )


def make(
    connection: Connection,
    queue: Queue,
    label: str,
    request: ArchiveRequest,
    *,
    range_rows: int = RANGE_ROWS,
    at_once: int = 1,
) -> ArchivePlan:
    """A plan of what may be archived now, not yet in the lake.

    With ranges for twice as many tasks as run `at_once`, of at most `range_rows`.
    """
    require_archive(queue, request)
    now = sql.value(connection, datetime, "pipeline.server_time").astimezone(UTC)
    empty = ArchivePlan(
        id=f"{now:%Y%m%dT%H%M%SZ}-{os.urandom(4).hex()}",
        connection=label,
        schema=queue.schema,
        queue=queue.name,
        design=queue.design.name,
        payload_kind=queue.options.get("payload", "text"),
        made_at=_plain(now, 0.0),
        cutoff=_plain(now, request.older),
        # --older applies to all rows of the archive.
        before=_plain(now, max(request.retention, request.older)),
        done_before="" if request.done_older is None else _plain(now, request.done_older),
        range_rows=range_rows,
        ranges=(),
    )
    plan = with_ranges(connection, queue, empty)
    enough = max(_LEAST_ROWS, plan.rows // (2 * at_once))
    if at_once == 1 or enough >= range_rows:
        return plan
    return with_ranges(connection, queue, replace(empty, range_rows=enough))


def with_ranges(connection: Connection, queue: Queue, plan: ArchivePlan) -> ArchivePlan:
    """The plan with ranges of the rows that are there now."""
    sources = (ARCHIVE, DONE) if plan.done_before else (ARCHIVE,)
    # Large steps first: they find the rows that match, which may be few.
    large = replace(plan, range_rows=max(plan.range_rows, RANGE_ROWS))
    steps: list[tuple[str, int, int, RangeStep]] = []
    for source in sources:
        found = [*_steps(connection, queue, source, large)]
        if plan.range_rows < large.range_rows:
            spans = [(after, last) for after, last, _ in found]
            found = [*_steps(connection, queue, source, plan, spans)]
        steps += [(source, *step) for step in found]
    ranges = [
        Range(number, source, after, last, step.rows)
        for number, (source, after, last, step) in enumerate(steps)
    ]
    oldest = [step.oldest for *_, step in steps if step.oldest is not None]
    newest = [step.newest for *_, step in steps if step.newest is not None]
    return replace(
        plan,
        ranges=ranges,
        oldest=_plain(min(oldest), 0.0) if oldest else "",
        newest=_plain(max(newest), 0.0) if newest else "",
    )


def _plain(moment: datetime, ago: float) -> str:
    """A time so long ago, as a literal that both engines read."""
    earlier = moment.astimezone(UTC) - timedelta(seconds=ago)
    return earlier.replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")


def _steps(
    connection: Connection,
    queue: Queue,
    source: str,
    plan: ArchivePlan,
    spans: Sequence[tuple[int, int]] = ((-(2**63), 2**63 - 1),),
) -> Iterator[tuple[int, int, RangeStep]]:
    """(after, last, step) for ranges along the key's index, without those where no row matches."""
    within = scope(connection, queue, source, **plan.values(source))
    reached, most = -(2**63), plan.range_rows
    for first, last in spans:
        # A step may end beyond its span, inside the next.
        reached = max(reached, first)
        while reached < last:
            step = sql.row(
                connection, RangeStep, "pipeline.step", within, after=reached, read_limit=most
            )
            if step.last is None:
                return
            if step.rows:
                yield reached, step.last, step
            if step.rows_read < most:
                return
            reached = step.last


def read(lake: Lake, folder: str) -> ArchivePlan:
    """A plan in the lake. FileNotFoundError, DamagedError."""
    path = f"{folder}/plan.json"
    content = lake.read_json(path)
    try:
        _require_known(content.pop("format"), content.pop("version"))
        ranges = [Range(**part) for part in content.pop("ranges")]
        return _valid(ArchivePlan(**content, ranges=ranges), folder)
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedError(
            f"{lake.path(path)} is not a plan that this console can read.",
            why=str(error),
            next_step="Nothing was changed. Put the file back from a backup of the lake, or use "
            "the console that wrote it.",
        ) from error


def _require_known(form: object, version: int) -> None:
    if form != _FORMAT or version > _VERSION:
        raise ValueError("it is of another version")


def _valid(plan: ArchivePlan, folder: str) -> ArchivePlan:
    """ValueError where it is not the plan of that folder, or a value has the wrong type."""
    if plan.manifests != folder:
        raise ValueError("it is of another queue, or another plan")
    for part in plan.ranges:
        numbers = (part.number, part.after, part.last, part.rows)
        if not all(isinstance(number, int) for number in numbers) or part.source not in _SOURCES:
            raise ValueError("one of its ranges is not valid")
    types = {"ranges": list, "range_rows": int}
    wrong = [n for n, value in vars(plan).items() if not isinstance(value, types.get(n, str))]
    if wrong:
        raise ValueError(f"{', '.join(wrong)} is not valid")
    return plan


def unfinished(lake: Lake, connection: str, queue: Queue) -> ArchivePlan | None:
    """The oldest unfinished plan of the queue under that name of its connection; also one whose
    last document is damaged, as it is written again."""
    data = data_folder(connection, queue.schema, queue.name)
    for name, documents in _plans(lake, f"{MANIFESTS}/{data}"):
        if "done.json" in documents:
            with suppress(DamagedError):
                _paths(lake, data, name, queue.name)
                continue
        return read(lake, f"{MANIFESTS}/{data}/{name}")
    return None


def write(lake: Lake, plan: ArchivePlan) -> None:
    """From now on it is finished before another is begun."""
    lake.write_json(f"{plan.manifests}/plan.json", plan.as_json(), once=True)
