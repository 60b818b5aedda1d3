"""Segments: JSON lines while they are written, Parquet once they are sealed.

    <folder>/open/connection=NAME/<segment>.jsonl
    <folder>/<kind>/connection=NAME/date=2026-03-29/<segment>.parquet
    <folder>/<kind>/connection=NAME/date=2026-03-28/merged-<segment>.parquet

The segments of a past day are merged into one file, sorted by queue and time, whose metadata names
them: to read one queue then takes a part of one file instead of 288. Segments that a merged file
names are no longer read, so a crash before they were removed costs nothing.

A crash may tear the last line, which is dropped and counted. Sealing a segment twice gives the same
files, so a crash in between costs nothing.
"""

import json
import math
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import unquote

from console.engines.standby import Standby
from console.features.history.rollup_files import (
    MERGED,
    MERGED_NAMES,
    connection_part,
    merged_names,
)
from console.figures import BY_NAME, FIGURES, MESSAGES
from console.monitor import subscribers
from console.monitor.latency import FIGURES as LATENCIES
from console.monitor.latency import Latency
from console.monitor.sampler import Reading
from console.monitor.snapshot import QueueSnapshot

if TYPE_CHECKING:
    import pyarrow as pa

VERSION = 1
"""Of lines and files. A reader skips newer ones; what older ones lack is null."""

Row = Mapping[str, object]

PRIMARY, STANDBY = "primary", "standby"

TIME, TEXT, COUNT, NUMBER = "time", "text", "count", "number"
"""Types: UTC to the microsecond, string, integer, float. All may be null."""


@dataclass(frozen=True, eq=False)
class RecordKind:
    """The columns of a kind of record. The first is `at`: the time, by the console's clock."""

    name: str
    columns: Mapping[str, str]


_QUEUE = {"at": TIME, "schema": TEXT, "queue": TEXT}

SAMPLES = RecordKind(
    "samples",
    {
        **_QUEUE,
        "design": TEXT,
        **{one.name: COUNT if one.unit is MESSAGES else NUMBER for one in FIGURES},
        "latency_seconds": NUMBER,
        "estimated": TEXT,
        "unknown": TEXT,
        "problem": TEXT,
        "next_seconds": NUMBER,
        **dict.fromkeys(LATENCIES, NUMBER),
        "subscribers": TEXT,
    },
)
"""A sample of a queue. `estimated` and `unknown`: names of figures, separated by commas;
`next_seconds`: the planned pause; `subscribers`: JSON. Both, and latencies, may be missing.
"""
LINKS = RecordKind(
    "links",
    {
        "at": TIME,
        "latency_seconds": NUMBER,
        "queues": COUNT,
        "error": TEXT,
        "next_seconds": NUMBER,
        "role": TEXT,
        "upstream": TEXT,
        "lag_seconds": NUMBER,
        "paused": COUNT,
        "receives": COUNT,
    },
)
"""A sample of a connection: how long it took, or why it failed, and the next pause.

`role`: `primary` or `standby`, null where it was not recorded; after it the standby's: 1 is yes.
"""
WAITS = RecordKind("waits", {**_QUEUE, "kind": TEXT, "wait": TEXT, "sessions": COUNT})
"""Waiting sessions by wait; without a queue: of the whole database."""
FINDINGS = RecordKind(
    "findings", {**_QUEUE, "verdict": TEXT, "code": TEXT, "severity": TEXT, "summary": TEXT}
)
"""The findings of one examination, a row each; no finding: a row without a code."""
ACTIONS = RecordKind(
    "actions",
    {
        **_QUEUE,
        "action_id": COUNT,
        "verb": TEXT,
        "ended_at": TIME,
        "operator": TEXT,
        "outcome": TEXT,
        "planned": COUNT,
        "done": COUNT,
        "skipped": COUNT,
        "failed": COUNT,
        "note": TEXT,
    },
)
"""An operator's action, when it began and again when it ended; `note`: of the verb note."""

CONSUMERS = RecordKind(
    "consumers",
    {
        **_QUEUE,
        "late": COUNT,
        "name": TEXT,
        "does": TEXT,
        "program": TEXT,
        "host": TEXT,
        "user": TEXT,
        "sessions": COUNT,
        "since": TIME,
        "last_pop": TIME,
        "last_call": TIME,
        "messages_per_second": NUMBER,
        "claims": COUNT,
        "identities": TEXT,
    },
)
"""Consumers and producers, a row each; none seen: a row without name and actions.

`late`: messages that waited for too long; `identities`: sessions, one per line.
"""

KINDS = {kind.name: kind for kind in (SAMPLES, LINKS, WAITS, FINDINGS, ACTIONS, CONSUMERS)}


def samples(reading: Reading, at: datetime) -> Iterator[Row]:
    for snapshot in reading.queues:
        yield {
            "at": at,
            "schema": snapshot.schema,
            "queue": snapshot.queue,
            "design": snapshot.design,
            **{name: getattr(snapshot, name) for name in BY_NAME},
            "latency_seconds": reading.latency_seconds,
            "estimated": ",".join(snapshot.estimated),
            "unknown": ",".join(snapshot.unknown),
            "problem": snapshot.problem,
            "next_seconds": reading.next_seconds,
            **({} if snapshot.latency is None else snapshot.latency.figures),
            "subscribers": subscribers.to_text(snapshot.subscribers),
        }


def link(reading: Reading, at: datetime) -> Row:
    row: dict[str, object] = {"at": at, "next_seconds": reading.next_seconds}
    if reading.error is not None:
        return row | {"error": reading.error.what}
    row |= {"latency_seconds": reading.latency_seconds, "queues": len(reading.queues)}
    if (standby := reading.standby) is None:
        return row | {"role": PRIMARY}
    return row | {
        "role": STANDBY,
        "upstream": standby.upstream,
        "lag_seconds": standby.lag_seconds,
        "paused": int(standby.paused),
        "receives": None if standby.receives is None else int(standby.receives),
    }


def standby_of(row: Mapping[str, Any]) -> Standby | None:
    """The standby that a link's sample was taken on, with the console's clock; None: a primary, or
    not recorded."""
    if row["role"] != STANDBY:
        return None
    receives = row["receives"]
    return Standby(
        bool(row["paused"]),
        None if receives is None else bool(receives),
        row["lag_seconds"],
        row["upstream"],
        row["at"],
        received=None,
        replayed=None,
    )


def snapshot_of(row: Row, connection: str) -> QueueSnapshot:
    figures = {name: row.get(name) for name in BY_NAME}
    return QueueSnapshot(
        queue=str(row["queue"] or ""),
        design=str(row.get("design") or "?"),
        schema=str(row["schema"] or ""),
        connection=connection,
        estimated=_names(row.get("estimated")),
        unknown=_names(row.get("unknown")),
        problem=str(row.get("problem") or ""),
        latency=Latency.recorded(row),
        subscribers=subscribers.from_text(row.get("subscribers")),
        **figures,  # type: ignore[arg-type]  # by name, as `samples` has written them
    )


def _names(words: object) -> tuple[str, ...]:
    return tuple(filter(None, str(words or "").split(",")))


@dataclass(frozen=True)
class TimeRange:
    """A period without its end."""

    begin: datetime
    end: datetime

    def __contains__(self, at: datetime) -> bool:
        return self.begin <= at < self.end

    def days(self) -> Iterator[date]:
        day = self.begin.date()
        while day <= self.end.date():
            yield day
            day += timedelta(days=1)


ALWAYS = TimeRange(datetime(1970, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC))
"""Records of other times are damaged."""

_GROUP_ROWS = 16_384
_AT_ONCE = 500_000
_OPEN = ".jsonl"
_CLOSED = ".parquet"
_FORMAT = "dbq-console recording"


def connection_of(folder: Path) -> str:
    return unquote(folder.name.removeprefix("connection="))


def open_folder(root: Path, connection: str) -> Path:
    return root / "open" / connection_part(connection)


@dataclass
class SegmentLines:
    """The records of an open segment, in order."""

    rows: list[tuple[RecordKind, dict[str, Any]]] = field(default_factory=list)
    torn: int = 0
    """Lines that a crash cut off, or that are damaged."""
    newer: int = 0


class Segment:
    """An open segment, used by one thread."""

    def __init__(self, root: Path, connection: str, started_at: datetime) -> None:
        folder = open_folder(root, connection)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._root = root
        self._connection = connection
        stamp = f"{started_at:%Y%m%dT%H%M%S}.{started_at.microsecond:06}Z"
        self.path = folder / f"{stamp}-{os.urandom(4).hex()}{_OPEN}"
        self._file: BinaryIO = self.path.open("xb", buffering=0)
        self.bytes = 0

    def write(self, kind: RecordKind, rows: Iterable[Row]) -> None:
        """Append rows in one write. OSError."""
        head = {"v": VERSION, "of": kind.name}
        lines = [json.dumps(head | _json_values(kind, row), ensure_ascii=False) for row in rows]
        # Names on SQL Server may have a lone surrogate: it becomes JSON's escape.
        data = "".join(f"{line}\n" for line in lines).encode(errors="backslashreplace")
        if not data:
            return
        before = self.bytes
        written = 0
        try:
            while written < len(data):
                written += self._file.write(data[written:])
        except OSError:
            # Part of a line would damage the next one.
            with suppress(OSError):
                os.ftruncate(self._file.fileno(), before)
                self._file.seek(before)
            raise
        self.bytes += len(data)

    def leave(self) -> None:
        self._file.close()

    def close(self) -> SegmentLines:
        """Seal it. OSError: it stays open."""
        self.leave()
        return seal(self._root, self._connection, self.path)


def open_segments(root: Path, connection: str) -> list[Path]:
    """Segments that are not sealed, in order."""
    return sorted(open_folder(root, connection).glob(f"*{_OPEN}"))


def seal(root: Path, connection: str, path: Path) -> SegmentLines:
    """Write the Parquet files of an open segment, each atomically; then remove it. OSError."""
    lines = read_lines(path)
    parts: defaultdict[tuple[RecordKind, date], list[dict[str, Any]]] = defaultdict(list)
    for kind, row in lines.rows:
        parts[kind, row["at"].date()].append(row)
    for (kind, day), rows in parts.items():
        folder = root / kind.name / connection_part(connection) / f"date={day}"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _write(folder / path.with_suffix(_CLOSED).name, kind, rows)
    path.unlink()
    return lines


def read_lines(path: Path) -> SegmentLines:
    """Also while the segment is written. OSError."""
    lines = SegmentLines()
    with path.open("rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                lines.torn += 1  # or being written
                break
            _read_line(line, lines)
    return lines


def _read_line(line: bytes, lines: SegmentLines) -> None:
    try:
        record = json.loads(line)
        if int(record["v"]) > VERSION:
            lines.newer += 1
            return
        kind = KINDS[record["of"]]
        row = {name: _typed(of, record.get(name)) for name, of in kind.columns.items()}
        row["at"] = _time(record["at"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        lines.torn += 1
    else:
        lines.rows.append((kind, row))


def _json_values(kind: RecordKind, row: Row) -> dict[str, object]:
    """The values of a line: without nulls."""
    shown: dict[str, object] = {}
    for name in kind.columns:
        value = row.get(name)
        if value is not None and value != "":
            shown[name] = value.isoformat() if isinstance(value, datetime) else value
    return shown


def _typed(of: str, value: object) -> object:
    """A value of a line in its column's type. ValueError, TypeError, OverflowError."""
    return None if value is None else _READERS[of](value)


def _time(value: object) -> datetime:
    moment = datetime.fromisoformat(str(value)).astimezone(UTC)
    if moment not in ALWAYS:
        raise ValueError("time out of range")
    return moment


def _text(value: object) -> str:
    """Parquet takes valid Unicode only."""
    return str(value).encode(errors="replace").decode()


def _count(value: Any) -> int:
    count = int(value)
    if not -(2**63) <= count < 2**63:
        raise ValueError("count out of range")
    return count


def _number(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError("figure is not finite")
    return number


_READERS: Mapping[str, Callable[[Any], object]] = {
    TIME: _time,
    TEXT: _text,
    COUNT: _count,
    NUMBER: _number,
}


def schema(kind: RecordKind) -> "pa.Schema":
    import pyarrow as pa  # noqa: PLC0415  # verbs shall start at once

    types = {
        TIME: pa.timestamp("us", tz="UTC"),
        TEXT: pa.string(),
        COUNT: pa.int64(),
        NUMBER: pa.float64(),
    }
    metadata = {"format": _FORMAT, "version": str(VERSION)}
    return pa.schema([(name, types[of]) for name, of in kind.columns.items()], metadata=metadata)


def _write(path: Path, kind: RecordKind, rows: list[dict[str, Any]]) -> None:
    import pyarrow as pa  # noqa: PLC0415

    of = schema(kind)
    with _writer(path, of) as writer:
        writer.write_table(pa.Table.from_pylist(rows, schema=of))


@contextmanager
def _writer(path: Path, of: "pa.Schema") -> Iterator[Any]:
    """Of a Parquet file that appears, durably, when the body ends."""
    import pyarrow.parquet as pq  # noqa: PLC0415  # verbs shall start at once

    # Readers skip names that begin with a dot.
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open("xb") as file:
            with pq.ParquetWriter(  # type: ignore[no-untyped-call]
                file, of, compression="zstd"
            ) as writer:
                yield writer
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def merge(root: Path, connection: str, before: date) -> None:
    """Merge the segments of each day before that one; needs the connection's lock. OSError.

    What is damaged, or was recorded by two consoles at once, stays as it is.
    """
    for kind in KINDS.values():
        for folder in sorted((root / kind.name / connection_part(connection)).glob("date=*")):
            day = _day_of(folder)
            if day is not None and day < before:
                _merge_day(folder, kind)


def _merge_day(folder: Path, kind: RecordKind) -> None:
    paths, inside = _segments_in(folder)
    for path in paths:
        if path.stem in inside:  # of a merge that was interrupted
            path.unlink(missing_ok=True)
    alone = [p for p in paths if p.stem not in inside and not p.name.startswith(MERGED)]
    spans = {path: span for path in alone if (span := _span(path)) is not None}
    parts = sorted(spans, key=lambda path: spans[path])
    if len(parts) < 2 or any(spans[a][1] >= spans[b][0] for a, b in pairwise(parts)):
        return
    names = json.dumps([path.stem for path in parts])
    of = schema(kind).with_metadata({**(schema(kind).metadata or {}), MERGED_NAMES: names})
    with _writer(folder / f"{MERGED}{parts[0].name}", of) as writer:
        for table in _sorted(kind, parts):
            writer.write_table(table, row_group_size=_GROUP_ROWS)
    for path in parts:
        path.unlink()


def _sorted(kind: RecordKind, paths: list[Path]) -> Iterator["pa.Table"]:
    """All rows by queue and time, of so many queues at a time as fit in memory."""
    import pyarrow as pa  # noqa: PLC0415  # verbs shall start at once
    import pyarrow.dataset  # noqa: PLC0415

    ds: Any = pyarrow.dataset
    files = ds.dataset([str(path) for path in paths], schema(kind), "parquet")
    if "queue" not in kind.columns:
        yield files.to_table().sort_by("at")
        return
    counts = files.to_table(["queue"]).group_by("queue").aggregate([([], "count_all")])
    some: list[str | None] = []
    rows = 0
    wanted = sorted(counts.to_pylist(), key=lambda one: (one["queue"] is None, one["queue"] or ""))
    for at, one in enumerate(wanted):
        some.append(one["queue"])
        rows += one["count_all"]
        if rows >= _AT_ONCE or at == len(wanted) - 1:
            queue = ds.field("queue")
            of = queue.isin(pa.array([name for name in some if name is not None], pa.string()))
            table = files.to_table(filter=of | queue.is_null() if None in some else of)
            yield table.sort_by([(name, "ascending") for name in ("queue", "schema", "at")])
            some, rows = [], 0


def _span(path: Path) -> tuple[datetime, datetime] | None:
    """The first and the last time in it. None: it is damaged, empty, or of a newer console."""
    import pyarrow as pa  # noqa: PLC0415  # verbs shall start at once
    import pyarrow.compute  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    pc: Any = pyarrow.compute
    try:
        file = pq.read_table(path, partitioning=None)  # type: ignore[no-untyped-call]
    except (OSError, ValueError, pa.ArrowException):
        return None
    version = (file.schema.metadata or {}).get(b"version", b"1")
    if not file.num_rows or int(version) > VERSION:
        return None
    ends = pc.min_max(file.column("at")).as_py()
    return ends["min"], ends["max"]


def _segments_in(folder: Path) -> tuple[list[Path], set[str]]:
    """The files of a day, and the segments that are in merged ones of them."""
    paths = sorted(folder.glob(f"[!._]*{_CLOSED}"))
    merged = (names_in(path) for path in paths if path.name.startswith(MERGED))
    return paths, set().union(*merged)


def names_in(path: Path) -> frozenset[str]:
    """The segments in a file: itself, or those that were merged; none, if it is damaged."""
    if not path.name.startswith(MERGED):
        return frozenset([path.stem])
    import pyarrow as pa  # noqa: PLC0415  # verbs shall start at once
    import pyarrow.parquet as pq  # noqa: PLC0415

    try:
        return merged_names(pq.read_metadata(path))  # type: ignore[no-untyped-call]
    except (OSError, ValueError, pa.ArrowException):
        return frozenset()


def remove_drafts(root: Path, connection: str) -> None:
    """Remove files that a crash left half written; needs the connection's lock. OSError."""
    for kind in KINDS.values():
        for path in (root / kind.name / connection_part(connection)).glob(f"date=*/.*{_CLOSED}.*"):
            path.unlink(missing_ok=True)


def closed(root: Path, kind: RecordKind, connection: str) -> Iterator[tuple[date, Path]]:
    """The Parquet files of a kind, the oldest day first; drafts and other files are skipped."""
    for folder in sorted((root / kind.name / connection_part(connection)).glob("date=*")):
        if (day := _day_of(folder)) is not None:
            paths, inside = _segments_in(folder)
            yield from ((day, path) for path in paths if path.stem not in inside)


def _day_of(folder: Path) -> date | None:
    try:
        return date.fromisoformat(folder.name.removeprefix("date="))
    except ValueError:
        return None


def connections(root: Path) -> list[str]:
    folders = (folder for kind in ("open", *KINDS) for folder in (root / kind).glob("connection=*"))
    return sorted({connection_of(folder) for folder in folders if folder.is_dir()})
