"""Rollup tables of a lake, read without Spark: for what the recordings no longer have.

A day comes from the recordings where these know something of it that the lake does not, or where
points are wanted that are shorter than a minute. Else it comes from the widest table whose rows
are no longer than a point.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from console import rolled
from console.errors import ConsoleError, UsageError
from console.monitor.recording import segments
from console.monitor.recording.reading import Skipped, Span, sound
from console.monitor.recording.records import KINDS

if TYPE_CHECKING:
    import pyarrow as pa

RAW = "raw"


@dataclass(frozen=True)
class Made:
    """A day in the lake: the segments that it was made of, by kind."""

    segments: Mapping[str, frozenset[str]]


@dataclass
class Rollups:
    """Reads one connection's tables of a lake: a folder, or a URI that Arrow knows."""

    lake: str
    connection: str
    skipped: Skipped = field(default_factory=Skipped)

    def __post_init__(self) -> None:
        """UsageError for a place that cannot be."""
        from pyarrow import fs  # noqa: PLC0415  # verbs shall start at once

        place = self.lake if "://" in self.lake else str(Path(self.lake).expanduser().absolute())
        try:
            known = place.replace("s3a://", "s3://")
            self._files, self._root = fs.FileSystem.from_uri(known)  # type: ignore[attr-defined]
        except (ValueError, OSError, NotImplementedError) as error:
            raise UsageError(
                f"The lake {place!r} is no place that can be used.", why=str(error)
            ) from error

    def days(self) -> dict[date, Made]:
        """The days that are whole in the lake. ConsoleError where it cannot be read."""
        found: dict[date, Made] = {}
        for path in self.names(rolled.manifests(self.connection)):
            name = path.rsplit("/", 1)[-1]
            try:
                day = date.fromisoformat(name.removeprefix("date=").removesuffix(".json"))
                with self._files.open_input_stream(path) as file:
                    told = json.loads(file.read())
                made = {kind: frozenset(names) for kind, names in told["segments"].items()}
            except FileNotFoundError:
                continue
            except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError):
                self.skipped.files += 1
                continue
            if told.get("state") == "done":
                found[day] = Made(made)
        return found

    def rows(
        self, kind: str, width: str, days: Iterable[date], span: Span, **equal: str
    ) -> list[dict[str, Any]]:
        """Rows of a table that touch the span, in order of time; what is damaged is skipped."""
        found: list[dict[str, Any]] = []
        for day in days:
            folder = f"{rolled.folder(width, kind, self.connection)}/date={day}"
            for path in self.names(folder):
                name = path.rsplit("/", 1)[-1]
                if name.endswith(".parquet") and not name.startswith(("_", ".")):
                    found += self._read(path, equal)
        length = timedelta(seconds=rolled.WIDTHS[width])
        inside = [r for r in found if r["begin"] < span.end and r["begin"] + length > span.begin]
        return sorted(inside, key=lambda row: row["begin"])

    def _read(self, path: str, equal: Mapping[str, str]) -> list[dict[str, Any]]:
        import pyarrow as pa  # noqa: PLC0415
        import pyarrow.parquet as pq  # noqa: PLC0415

        try:
            table = pq.read_table(  # type: ignore[no-untyped-call]
                path,
                filesystem=self._files,
                filters=[(name, "==", value) for name, value in equal.items()] or None,
                partitioning=None,
            )
            rows: list[dict[str, Any]] = sound(table, _types()).to_pylist()
            return [row for row in rows if row["begin"] is not None]
        except FileNotFoundError:
            return []
        except (OSError, KeyError, ValueError, OverflowError, pa.ArrowException):
            self.skipped.files += 1
            return []

    def names(self, folder: str) -> list[str]:
        """The paths in a folder of the lake, sorted."""
        from pyarrow import fs  # noqa: PLC0415

        place = f"{self._root.rstrip('/')}/{folder}"
        selector = fs.FileSelector(place, allow_not_found=True)  # type: ignore[attr-defined]
        try:
            return sorted(info.path for info in self._files.get_file_info(selector))
        except OSError as error:
            raise ConsoleError(
                f"The lake {self.lake} cannot be read.", why=error.strerror or str(error)
            ) from error


def _types() -> dict[str, "pa.DataType"]:
    """Of the columns that are read here."""
    import pyarrow as pa  # noqa: PLC0415

    number = {
        **{f"{name}_max": pa.float64() for name in rolled.MEANS},
        **{f"{name}_avg": pa.float64() for name in rolled.MEANS},
    }
    whole = {f"{name}_max": pa.int64() for name in rolled.COUNTS} | {"looks": pa.int64()}
    texts = ("schema", "queue", "design", "verdict", "code", "severity", "summary")
    times = dict.fromkeys(("begin", "first_at", "last_at"), pa.timestamp("us", tz="UTC"))
    return {**number, **whole, **dict.fromkeys(texts, pa.string()), **times}


def connections(lake: str) -> list[str]:
    """Every connection of which the lake has a rollup."""
    return [
        unquote(name.removeprefix("connection="))
        for path in Rollups(lake, "").names("_manifests/rollup")
        if (name := path.rsplit("/", 1)[-1]).startswith("connection=")
    ]


@dataclass(frozen=True)
class Sources:
    """From where the days of a span come."""

    by_width: Mapping[str, tuple[date, ...]]
    """`minute`, `hour`, `day`."""
    raw: frozenset[date]
    """From the recordings. A day may be here and among the minutes: each knows a part of it."""
    both: frozenset[date]
    """Those days."""
    step_seconds: int

    @property
    def words(self) -> tuple[str, ...]:
        """Those that are used, the narrowest first."""
        tables = (width for width in rolled.WIDTHS if self.by_width.get(width))
        return (*((RAW,) if self.raw else ()), *tables)


def choose(
    root: Path, connection: str, made: Mapping[date, Made], span: Span, step_seconds: int
) -> Sources:
    """From where each day of a span is best taken, for points of about that length."""
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
        known = {(kind, name) for kind, of in made[day].segments.items() for name in of}
        if names - known or is_open or (step_seconds < rolled.WIDTHS["minute"] and known <= names):
            raw.add(day)
            if not known <= names:
                both.append(day)
        else:
            lake.append(day)
    if both or lake:
        step_seconds = max(step_seconds, rolled.WIDTHS["minute"])
    widest = [w for w, seconds in rolled.WIDTHS.items() if step_seconds % seconds == 0][-1:]
    by_width: dict[str, tuple[date, ...]] = {"minute": tuple(both)}
    for width in widest:
        by_width[width] = (*by_width.get(width, ()), *lake)
    return Sources(by_width, frozenset(raw), frozenset(both), step_seconds)


def _recorded(root: Path, connection: str) -> dict[date, set[tuple[str, str]]]:
    """The kinds and names of the closed segments of each day, of those kinds that are rolled up."""
    found: dict[date, set[tuple[str, str]]] = {}
    for kind in rolled.KINDS:
        for day, path in segments.closed(root, KINDS[kind], connection):
            found.setdefault(day, set()).add((kind, path.stem))
    return found


def _first_open(root: Path, connection: str) -> date | None:
    """The first day of which an open segment may have something."""
    days = []
    for path in segments.leftovers(root, connection):
        try:
            days.append(datetime.strptime(path.name[:8], "%Y%m%d").replace(tzinfo=UTC).date())
        except ValueError:
            return date.min
    return min(days, default=None)


def looks(rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Rows of a table of samples as `history.points` takes them: highest, means, a weight."""
    for row in rows:
        highest = {name: row.get(f"{name}_max") for name in rolled.MEANS}
        means = (*rolled.RATES, "latency_seconds")
        yield {
            **highest,
            **{name: row.get(f"{name}_avg") for name in means},
            **{name: row.get(name) for name in ("schema", "queue", "design", "looks")},
            "at": row["begin"],
        }


def findings(rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Rows of a table of findings as looks at the beginnings of their stretches."""
    return ({**row, "at": row["begin"]} for row in rows)


def unseen(
    rows: Sequence[Mapping[str, Any]], seen: Iterable[datetime], days: Iterable[date]
) -> list[Mapping[str, Any]]:
    """Rows of a table, of these days without those in whose minute the recordings have a look."""
    minutes = {at.replace(second=0, microsecond=0) for at in seen}
    partial = set(days)
    return [
        row for row in rows if row["begin"].date() not in partial or row["begin"] not in minutes
    ]
