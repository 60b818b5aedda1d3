"""What a run is to take: a cut-off by the server's clock, and ranges of keys. Written once."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
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
    """Paths in the lake, by the kind of their payloads."""
    unfinished: int
    """Plans that are not done: their rows may be in the database still, and are left out."""


def find_archive(
    lake: Lake, connection: str | None, schema: str | None, queue: str
) -> QueueArchive:
    """The one queue of that name. UsageError where there is none, or there are several."""
    found = [one for one in _queues(lake, connection) if one[2] == queue]
    if schema is not None:
        found = [one for one in found if one[1] == schema]
    if not found:
        raise UsageError(
            f"The lake {lake.location} has no archive of {queue!r}.",
            next_step=f"Create it with: dbq-console pipeline archive {queue}",
        )
    if len(found) > 1:
        places = ", ".join(f"{one[1]}.{one[2]} of {one[0]}" for one in found)
        raise UsageError(
            f"The lake {lake.location} has several archives of {queue!r}.",
            why=f"They are: {places}.",
            next_step="Say which with --schema, and with --from its connection.",
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
    folder = manifests_folder(connection, schema, queue)
    by_kind: dict[str, tuple[str, ...]] = {}
    unfinished = 0
    for name in lake.names(folder):
        if not lake.exists(f"{folder}/{name}/plan.json"):
            continue
        if not lake.exists(f"{folder}/{name}/done.json"):
            unfinished += 1
            continue
        plan = read(lake, f"{folder}/{name}")
        by_kind[plan.payload_kind] = by_kind.get(plan.payload_kind, ()) + _paths(lake, plan)
    files_by_kind = {kind: paths for kind, paths in by_kind.items() if paths}
    if not files_by_kind and unfinished:
        raise RefusedError(
            f"The archive of {queue!r} in {lake.location} is not finished.",
            why=f"{unfinished} of its plans were interrupted.",
            next_step=f"Finish it with: dbq-console pipeline archive {queue}",
        )
    return QueueArchive(connection, schema, queue, files_by_kind, unfinished)


def _paths(lake: Lake, plan: ArchivePlan) -> tuple[str, ...]:
    """The files of a plan that is done. Those that nobody names are left out."""
    told = lake.read_json(plan.done_path).get("paths")
    if told is None:  # an earlier version, which had renames wherever it was used
        files = lake.data_files(plan.folder)
        return tuple(f for f in files if f.rsplit("/", 1)[-1].startswith(f"{plan.id}-"))
    if not isinstance(told, list) or not all(str(path).startswith(plan.folder) for path in told):
        raise DamagedError(
            f"{lake.path(plan.done_path)} is damaged.",
            why="It does not say which files the archive has.",
            next_step="Restore the file.",
        )
    return tuple(told)


RETENTION_SECONDS = 7 * 86_400.0
"""How long what was purged or archived stays in the database, for restore (DESIGN section 6)."""
RANGE_ROWS = 250_000
"""Each begins with a connection, which costs a task as much as some 20,000 rows."""
_LEAST_ROWS = 1_000
"""A smaller range costs more to begin than to move."""
_FORMAT = "dbq-console archive plan"
_VERSION = 1
ARCHIVE, DONE = "archive", "done"
_SOURCES = (ARCHIVE, DONE)
_NO_TEXTS = ("ranges", "range_rows")


@dataclass(frozen=True)
class ArchiveRequest:
    """What may go, as the operator said it; ages in seconds."""

    older: float = 0.0
    """Popped rows of the archive at least so old."""
    retention: float = RETENTION_SECONDS
    """All other rows of the archive at least so old."""
    done_older: float | None = None
    """Done rows of the queue itself at least so old; None: none of them."""


@dataclass(frozen=True)
class Range:
    """The keys after one, up to another."""

    number: int
    source: str
    after: int
    last: int
    rows: int
    """So many went when the plan was made."""

    def as_json(self) -> dict[str, Any]:
        return dict(vars(self))


@dataclass(frozen=True)
class RangeStep:
    """So many keys on, as the statement `step` tells it."""

    last: int | None
    looked: int
    rows: int
    oldest: datetime | None
    newest: datetime | None


@dataclass(frozen=True)
class ArchivePlan:
    """One plan: whatever it names is taken by it, and by no other."""

    id: str
    connection: str
    schema: str
    queue: str
    design: str
    payload_kind: str
    made_at: str
    cutoff: str
    """Of popped rows, UTC without a zone, as all its moments."""
    before: str
    """Of all other rows of the archive."""
    done_before: str
    """Of done rows of the queue; empty: none of them."""
    range_rows: int
    ranges: Sequence[Range]
    oldest: str = ""
    newest: str = ""

    @property
    def rows(self) -> int:
        """So many went when it was made."""
        return sum(part.rows for part in self.ranges)

    @property
    def folder(self) -> str:
        """Of its data in the lake."""
        return data_folder(self.connection, self.schema, self.queue)

    @property
    def manifests(self) -> str:
        """Its own folder."""
        return f"{manifests_folder(self.connection, self.schema, self.queue)}/{self.id}"

    def data_path(self, date: str, number: int) -> str:
        """The one name of a range's file of one day, where files can take each other's place."""
        return f"{self.folder}/date={date}/{self.stem(number)}.parquet"

    def stem(self, number: int) -> str:
        """What the names of a range's files begin with."""
        return f"{self.id}-{number:06}"

    @property
    def done_path(self) -> str:
        """Written last: what is in the lake."""
        return f"{self.manifests}/done.json"

    def range_path(self, number: int) -> str:
        return f"{self.manifests}/range-{number:06}.json"

    def values(self, source: str) -> dict[str, str]:
        """The moments that the predicate of a source compares with."""
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
    """For the statements of a source."""
    within = queue.scope(on, **values)
    return sql.Scope(within.values, {**within.options, "source": source}, within.roles)


def require_archive(queue: Queue, wanted: ArchiveRequest) -> None:
    """RefusedError or UsageError where the queue has nothing of the kind."""
    if queue.kind is Kind.ADOPTED:
        raise RefusedError(
            f"The queue {queue.name!r} was adopted and has no archive.",
            why="The console deletes nothing for good from tables of other programs.",
        )
    if wanted.done_older is not None and (
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
    wanted: ArchiveRequest,
    *,
    range_rows: int = RANGE_ROWS,
    at_once: int = 1,
) -> ArchivePlan:
    """The plan of what may go now: ranges enough for twice as many tasks as work at a time.

    It is not in the lake yet.
    """
    require_archive(queue, wanted)
    moment = sql.value(connection, datetime, "pipeline.server_time")
    now = moment.astimezone(UTC)
    empty = ArchivePlan(
        id=f"{now:%Y%m%dT%H%M%SZ}-{os.urandom(4).hex()}",
        connection=label,
        schema=queue.schema,
        queue=queue.name,
        design=queue.design.name,
        payload_kind=queue.options.get("payload", "text"),
        made_at=_plain(now, 0.0),
        cutoff=_plain(now, wanted.older),
        # Never later than the popped ones: whoever says --older means all.
        before=_plain(now, max(wanted.retention, wanted.older)),
        done_before="" if wanted.done_older is None else _plain(now, wanted.done_older),
        range_rows=range_rows,
        ranges=(),
    )
    whole = made_again(connection, queue, empty)
    enough = max(_LEAST_ROWS, whole.rows // (2 * at_once))
    if at_once == 1 or enough >= range_rows:
        return whole
    return made_again(connection, queue, replace(empty, range_rows=enough))


def made_again(connection: Connection, queue: Queue, plan: ArchivePlan) -> ArchivePlan:
    """The same plan of what there is now: others may have taken some of it."""
    sources = (ARCHIVE, DONE) if plan.done_before else (ARCHIVE,)
    # By large steps to where anything goes, which may be a small part of all.
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
    """A moment as both engines read it in a literal."""
    earlier = moment.astimezone(UTC) - timedelta(seconds=ago)
    return earlier.replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")


def _steps(
    connection: Connection,
    queue: Queue,
    source: str,
    plan: ArchivePlan,
    spans: Sequence[tuple[int, int]] = ((-(2**63), 2**63 - 1),),
) -> Iterator[tuple[int, int, RangeStep]]:
    """Ranges by steps along the key's index; those of which nothing goes are left out."""
    within = scope(connection, queue, source, **plan.values(source))
    reached, look = -(2**63), plan.range_rows
    for first, last in spans:
        # A step may go beyond the end of its span, into the next.
        reached = max(reached, first)
        while reached < last:
            step = sql.row(connection, RangeStep, "pipeline.step", within, after=reached, look=look)
            if step.last is None:
                return
            if step.rows:
                yield reached, step.last, step
            if step.looked < look:
                return
            reached = step.last


def read(lake: Lake, folder: str) -> ArchivePlan:
    """A plan of the lake. FileNotFoundError, DamagedError."""
    path = f"{folder}/plan.json"
    told = lake.read_json(path)
    try:
        _require_known(told.pop("format"), told.pop("version"))
        ranges = [Range(**part) for part in told.pop("ranges")]
        return _sound(ArchivePlan(**told, ranges=ranges), folder)
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedError(
            f"{lake.path(path)} is not a plan that this console can read.",
            why=str(error),
            next_step="Nothing was changed. Restore the file, or use the console that wrote it.",
        ) from error


def _sound(plan: ArchivePlan, folder: str) -> ArchivePlan:
    """The plan of that folder, each value of it of its kind. ValueError."""
    if plan.manifests != folder:
        raise ValueError("it is of another queue, or another plan")
    for part in plan.ranges:
        whole = (part.number, part.after, part.last, part.rows)
        if not all(isinstance(number, int) for number in whole) or part.source not in _SOURCES:
            raise ValueError("one of its ranges is not valid")
    texts = {name: value for name, value in vars(plan).items() if name not in _NO_TEXTS}
    wrong = [name for name, value in texts.items() if not isinstance(value, str)]
    if wrong or not isinstance(plan.range_rows, int):
        raise ValueError(f"{', '.join(wrong) or 'range_rows'} is not valid")
    return plan


def _require_known(form: object, version: int) -> None:
    if form != _FORMAT or version > _VERSION:
        raise ValueError("it is of another version")


def unfinished(lake: Lake, connection: str, queue: Queue) -> ArchivePlan | None:
    """The oldest plan of the queue that is not done; None: all are."""
    folder = manifests_folder(connection, queue.schema, queue.name)
    for name in lake.names(folder):
        if name.startswith(("_", ".")):
            continue
        if lake.exists(f"{folder}/{name}/plan.json") and not lake.exists(
            f"{folder}/{name}/done.json"
        ):
            return read(lake, f"{folder}/{name}")
    return None


def write(lake: Lake, made: ArchivePlan) -> None:
    """Keep it: from now on it is finished before there is another."""
    lake.write_json(f"{made.manifests}/plan.json", made.as_json(), once=True)
