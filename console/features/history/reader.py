"""Reads recordings, from closed and open segments, and the rollup tables of a lake (without Spark).

A day is read from the recordings if they have something that the lake does not, or if points are
shorter than a minute; otherwise from the widest table whose rows are no longer than a point."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from console.features.history import forecast_files, lake_tables, rollup_files, segments
from console.features.history.lake_tables import LakeReader, TableFile
from console.features.history.rollup_files import DayMadeOf
from console.features.history.segments import ALWAYS, KINDS, RecordKind, TimeRange

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass
class SkippedRecords:
    files: int = 0
    lines: int = 0
    newer: int = 0
    """Records of a newer console than this one."""
    rollups: str = ""
    """Why the lake's are not read."""

    @property
    def text(self) -> str:
        """Empty: nothing was skipped."""
        counts = [
            (self.files, "damaged files"),
            (self.lines, "torn lines"),
            (self.newer, "records of a newer console"),
        ]
        found = [f"{number:,} {what}" for number, what in counts if number]
        found += filter(None, [self.rollups])
        return f"skipped: {', '.join(found)}" if found else ""

    @contextmanager
    def counting_damage(self) -> Iterator[None]:
        """Skips a file that cannot be read, and counts it unless it was removed meanwhile."""
        import pyarrow as pa  # noqa: PLC0415  # verbs shall start at once

        try:
            yield
        except FileNotFoundError:
            pass
        except (OSError, LookupError, ValueError, OverflowError):
            self.files += 1
        except (RecursionError, pa.ArrowException):
            self.files += 1


@dataclass
class RecordReader:
    """Reads one connection's records under a folder, from disk."""

    root: Path
    connection: str
    skipped: SkippedRecords = field(default_factory=SkippedRecords)
    once: bool = False
    """Whether an open segment is read only once: what is written to it later is not seen."""
    _lines: dict[Path, segments.SegmentLines] = field(default_factory=dict, init=False)

    @property
    def is_recorded(self) -> bool:
        """Whether there is anything of the connection; Arrow is not needed to know."""
        return self.connection in segments.connections(self.root)

    def rows(
        self,
        kind: RecordKind,
        span: TimeRange,
        columns: Sequence[str] | None = None,
        thin: Callable[[list[dict[str, Any]]], list[dict[str, Any]]] | None = None,
        **equal: str,
    ) -> list[dict[str, Any]]:
        """Rows in order of time; `equal`: the schema, the queue. What is damaged is skipped and
        counted. `thin` reduces some rows at a time."""
        if not self.is_recorded:
            return []  # without Arrow
        names = list(columns or kind.columns)
        found: list[dict[str, Any]] = []
        table = self.table(kind, span, dict.fromkeys(["at", *names]), **equal)
        for batch in table.to_batches():
            rows = batch.to_pylist()
            found += rows if thin is None else thin(rows)
        found.sort(key=lambda row: row["at"])
        return [{name: row[name] for name in names} for row in found]

    def table(
        self, kind: RecordKind, span: TimeRange, columns: Iterable[str], **equal: str
    ) -> "pa.Table":
        """The same, in no order, and with `at` among the columns."""
        import pyarrow as pa  # noqa: PLC0415  # verbs shall start at once

        names = list(columns)
        # Open segments first: one that is closed meanwhile is then found among the closed ones.
        rows, read = self._open(kind, span, names, equal)
        found = [pa.Table.from_pylist(rows, _schema(kind, names))]
        for attempt in range(_ATTEMPTS):
            days = _overlapping(list(segments.closed(self.root, kind, self.connection)), span)
            paths = [
                path
                for day, path in days
                if span.begin.date() <= day <= span.end.date() and path.stem not in read
            ]
            # Files are removed when they are merged: then their rows are in another one.
            with suppress(FileNotFoundError):
                last = attempt == _ATTEMPTS - 1
                found += self._closed(kind, paths, span, names, equal, skip_missing=last)
                break
        return pa.concat_tables(found)

    def extent(self, kind: RecordKind) -> tuple[datetime, datetime] | None:
        """The times of the first and the last record; None: there are none. Reads only the ends."""
        files = list(segments.closed(self.root, kind, self.connection))
        ends: list[datetime] = []
        for ordered in (files, files[::-1]):
            for _, of in groupby(ordered, lambda one: one[0]):
                tables = self._closed(kind, [path for _, path in of], ALWAYS, ["at"], {})
                found = [at for table in tables for at in table.column("at").to_pylist()]
                if found:
                    ends += [min(found), max(found)]
                    break
        ends += [row["at"] for row in self._open(kind, ALWAYS, ["at"], {})[0]]
        return (min(ends), max(ends)) if ends else None

    def _open(
        self, kind: RecordKind, span: TimeRange, names: Sequence[str], equal: Mapping[str, str]
    ) -> tuple[list[dict[str, Any]], set[str]]:
        found: list[dict[str, Any]] = []
        read: set[str] = set()
        for path in (*self._lines, *segments.open_segments(self.root, self.connection)):
            if path.stem in read:
                continue
            lines = self._lines.get(path)
            try:
                lines = lines or self._read_lines(path)
            except FileNotFoundError:
                continue  # closed just now
            except OSError:
                self.skipped.files += 1
                continue
            read.add(path.stem)
            for of, row in lines.rows:
                matches = all(row.get(name) == value for name, value in equal.items())
                if of is kind and row["at"] in span and matches:
                    found.append({name: row[name] for name in names})
        return found, read

    def _read_lines(self, path: Path) -> segments.SegmentLines:
        lines = segments.read_lines(path)
        self.skipped.newer += lines.newer
        self.skipped.lines += max(0, lines.torn - 1)  # the last one may just be written
        if self.once:
            self._lines[path] = lines
        return lines

    def _closed(
        self,
        kind: RecordKind,
        paths: Sequence[Path],
        span: TimeRange,
        names: Sequence[str],
        equal: Mapping[str, str],
        *,
        skip_missing: bool = True,
    ) -> list["pa.Table"]:
        """All files at once; where that fails each of them, to know which is damaged.
        FileNotFoundError, unless those are skipped."""
        import pyarrow as pa  # noqa: PLC0415  # verbs shall start at once
        import pyarrow.dataset  # noqa: PLC0415

        ds: Any = pyarrow.dataset
        wanted = (ds.field("at") >= span.begin) & (ds.field("at") < span.end)
        for name, value in equal.items():
            wanted &= ds.field(name) == value

        def read(some: Sequence[Path]) -> pa.Table:
            files = ds.dataset([str(path) for path in some], segments.schema(kind), "parquet")
            table: pa.Table = files.to_table(columns=list(names), filter=wanted)
            return validated(table, {one.name: one.type for one in _schema(kind, names)})

        if not paths:
            return []
        try:
            return [read(paths)]
        except FileNotFoundError:
            if not skip_missing:
                raise
        except (OSError, LookupError, ValueError, OverflowError, pa.ArrowException):
            pass
        closed = []
        for path in paths:
            with self.skipped.counting_damage():
                closed.append(read([path]))
        return closed


def _schema(kind: RecordKind, names: Sequence[str]) -> "pa.Schema":
    import pyarrow as pa  # noqa: PLC0415  # verbs shall start at once

    return pa.schema([segments.schema(kind).field(name) for name in names])


_ATTEMPTS = 3
_OVERLAP = timedelta(minutes=10)
"""By which segments may overlap, as of several consoles in one folder or for rows that waited."""
_LEAST, _MOST = (datetime(year, 1, 2, tzinfo=UTC) for year in (1970, 9999))


def _overlapping(
    files: Sequence[tuple[date, Path]], span: TimeRange
) -> Iterator[tuple[date, Path]]:
    """The files that may have rows of the span: a segment's name is the time when it began and the
    one before it ended."""
    begin, end = max(span.begin, _LEAST) - _OVERLAP, min(span.end, _MOST) + _OVERLAP
    first, last = (f"{at:%Y%m%dT%H%M%S}" for at in (begin, end))
    for number, (day, path) in enumerate(files):
        after = files[number + 1][1].name if number + 1 < len(files) else "9"
        renamed = not path.name[:8].isdigit()
        if renamed or (after >= first and path.name[: len(last)] <= last):
            yield day, path


def validated(table: "pa.Table", types: Mapping[str, "pa.DataType"]) -> "pa.Table":
    """The table with these column types and no infinite figures: it may be from another program.
    ArrowException."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415

    for at, name in enumerate(table.column_names):
        if name not in types:
            continue
        column = table.column(at).cast(types[name])
        if pa.types.is_floating(types[name]):
            column = pc.if_else(pc.is_finite(column), column, None)  # type: ignore[attr-defined]
        table = table.set_column(at, name, column)
    return table


RAW = "raw"


@dataclass
class Rollups:
    """Reads one connection's rows of the tables in a lake: a folder, or a URI that Arrow knows."""

    lake: str
    connection: str
    skipped: SkippedRecords = field(default_factory=SkippedRecords)

    def __post_init__(self) -> None:
        self._reader = LakeReader(self.lake)
        self._tables: dict[str, list[TableFile]] = {}

    def files(self, table: str) -> list[TableFile]:
        """ConsoleError: the table cannot be read."""
        if table not in self._tables:
            self._tables[table] = self._listed(table)
        return self._tables[table]

    def _listed(self, table: str) -> list[TableFile]:
        if not lake_tables.is_installed():
            self.skipped.rollups = f"the lake, which needs {lake_tables.INSTALL}"
            return []
        files = self._reader.table(table)
        if files is None and self._reader.has("_manifests"):
            self.skipped.rollups = (
                "rollups of an older console: dbq-console pipeline rollup says what to do"
            )
        return files or []

    def _rollups(self, **partition: str) -> list[TableFile]:
        of = {"connection": self.connection, **partition}.items()
        return [file for file in self.files(rollup_files.TABLE) if of <= file.partition.items()]

    def days(self) -> dict[date, DayMadeOf]:
        """The days of the lake. ConsoleError: it cannot be read."""
        of = {"connection": self.connection, "kind": rollup_files.SEGMENTS}
        files = [
            file for file in self.files(rollup_files.TABLE) if of.items() <= file.partition.items()
        ]
        made = rollup_files.days_made_of(files, self._read)
        return {date.fromisoformat(day): day_made_of for (_, day), day_made_of in made.items()}

    def rows(
        self, kind: str, width: str, days: Iterable[date], span: TimeRange, **equal: str
    ) -> list[dict[str, Any]]:
        """Rows of a table that overlap the span, in order of time; damaged files are skipped."""
        dates = {day.isoformat() for day in days}
        filters = [(key, "==", value) for key, value in equal.items()] or None
        files = self._rollups(kind=kind, width=width)
        some = (file for file in files if file.partition["date"] in dates)
        rows = (row for file in some for row in self._read(file.path, filters))
        found = [row for row in rows if row["begin"] is not None]
        length = timedelta(seconds=rollup_files.WIDTHS[width])
        inside = [r for r in found if r["begin"] < span.end and r["begin"] + length > span.begin]
        return sorted(inside, key=lambda row: row["begin"])

    def forecast_rows(self) -> list[dict[str, Any]]:
        files = self.files(forecast_files.TABLE)
        mine = (file for file in files if file.partition["connection"] == self.connection)
        return [row for file in mine for row in self._read(file.path)]

    def _read(self, path: str, filters: object = None) -> list[dict[str, Any]]:
        """A file's rows; where it is damaged it is counted."""
        import pyarrow.parquet as pq  # noqa: PLC0415

        rows: list[dict[str, Any]] = []
        with self.skipped.counting_damage():
            table = pq.read_table(  # type: ignore[no-untyped-call]
                path, filesystem=self._reader.files, filters=filters, partitioning=None
            )
            rows += validated(table, _types()).to_pylist()
        return rows


def _types() -> dict[str, "pa.DataType"]:
    columns = (*rollup_files.columns(), *forecast_files.columns())
    return {column.name: column.type for column in columns if column.name != "latency_sketch"}


def connections(lake: str) -> list[str]:
    files = Rollups(lake, "").files(rollup_files.TABLE)
    return sorted({file.partition["connection"] for file in files})


@dataclass(frozen=True)
class Sources:
    by_width: Mapping[str, tuple[date, ...]]
    """`minute`, `hour`, `day`."""
    raw: frozenset[date]
    both: frozenset[date]
    """Days that are read from recordings and from the minutes table."""
    step_seconds: int

    @property
    def names(self) -> tuple[str, ...]:
        """The sources that are used, the narrowest first."""
        tables = (width for width in rollup_files.WIDTHS if self.by_width.get(width))
        return (*((RAW,) if self.raw else ()), *tables)


def choose_sources(
    root: Path, connection: str, made: Mapping[date, DayMadeOf], span: TimeRange, step_seconds: int
) -> Sources:
    """The best source of each day, for points of about that length."""
    here = _recorded(root, connection)
    opened = _first_open(root, connection)
    raw: set[date] = set()
    lake: list[date] = []
    both: list[date] = []
    for day in span.days():
        names = here.get(day, set())
        is_open = opened is not None and day >= opened
        if day not in made:
            if names or is_open:
                raw.add(day)
            continue
        known = made[day].used
        if (
            names - known
            or is_open
            or (step_seconds < rollup_files.WIDTHS["minute"] and known <= names)
        ):
            raw.add(day)
            if not known <= names:
                both.append(day)
        else:
            lake.append(day)
    if both or lake:
        step_seconds = max(step_seconds, rollup_files.WIDTHS["minute"])
    widest = [w for w, seconds in rollup_files.WIDTHS.items() if step_seconds % seconds == 0][-1:]
    by_width: dict[str, tuple[date, ...]] = {"minute": tuple(both)}
    for width in widest:
        by_width[width] = (*by_width.get(width, ()), *lake)
    return Sources(by_width, frozenset(raw), frozenset(both), step_seconds)


def _recorded(root: Path, connection: str) -> dict[date, set[tuple[str, str]]]:
    """Day -> (kind, name) of its closed segments, of the kinds that are rolled up."""
    recorded: dict[date, set[tuple[str, str]]] = {}
    for kind in rollup_files.KINDS:
        for day, path in segments.closed(root, KINDS[kind], connection):
            recorded.setdefault(day, set()).update((kind, one) for one in segments.names_in(path))
    return recorded


def _first_open(root: Path, connection: str) -> date | None:
    """The first day that an open segment may have rows of."""
    days = []
    for path in segments.open_segments(root, connection):
        try:
            days.append(datetime.strptime(path.name[:8], "%Y%m%d").replace(tzinfo=UTC).date())
        except ValueError:
            return date.min
    return min(days, default=None)


def rollup_samples(rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Rows of a samples table as `history.points` expects them: highest, means, a weight."""
    for row in rows:
        yield {
            **{
                name: row.get(f"{name}_avg" if unit.mean else f"{name}_max")
                for name, unit in rollup_files.MEANS.items()
            },
            **{name: row.get(name) for name in ("schema", "queue", "design", "samples")},
            "at": row["begin"],
        }


def rollup_findings(rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Rows of a findings table, by the beginnings of their periods."""
    return ({**row, "at": row["begin"]} for row in rows)


def not_recorded(
    rows: Sequence[Mapping[str, Any]], seen: Iterable[datetime], days: Iterable[date]
) -> list[Mapping[str, Any]]:
    """Rows of a table; of these days only those whose minute has no recorded sample."""
    minutes = {at.replace(second=0, microsecond=0) for at in seen}
    partial = set(days)
    return [
        row for row in rows if row["begin"].date() not in partial or row["begin"] not in minutes
    ]
