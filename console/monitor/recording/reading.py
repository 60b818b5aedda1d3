"""Records read again: from closed segments and from those that are still open, in order of time."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from console.monitor.recording import segments
from console.monitor.recording.records import Kind
from console.monitor.recording.segments import ALWAYS, Span

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ALWAYS", "Reader", "Skipped", "Span", "sound"]


@dataclass
class Skipped:
    """What could not be read, and is said."""

    files: int = 0
    lines: int = 0
    newer: int = 0
    """Records of a newer console than this one."""

    @property
    def words(self) -> str:
        """For a person; empty where nothing was."""
        told = [
            (self.files, "damaged files"),
            (self.lines, "torn lines"),
            (self.newer, "records of a newer console"),
        ]
        found = ", ".join(f"{number:,} {what}" for number, what in told if number)
        return f"skipped: {found}" if found else ""


@dataclass
class Reader:
    """Reads one connection's records under a folder. Waits for the disk."""

    root: Path
    connection: str
    skipped: Skipped = field(default_factory=Skipped)

    def rows(
        self,
        kind: Kind,
        span: Span,
        columns: Sequence[str] | None = None,
        thin: Callable[[list[dict[str, Any]]], list[dict[str, Any]]] | None = None,
        **equal: str,
    ) -> list[dict[str, Any]]:
        """Rows of a kind in a span, in order of time; `equal`: of a schema, of a queue.

        What is damaged is skipped and counted. `thin` makes fewer of the rows of a file, at once.
        """
        names = list(columns or kind.columns)
        # The open ones first: one that is closed meanwhile is then found among the others.
        found, read = self._open(kind, span, names, equal)
        for day, path in segments.closed(self.root, kind, self.connection):
            if span.begin.date() <= day <= span.end.date() and path.stem not in read:
                rows = self._closed(kind, path, span, names, equal)
                found += rows if thin is None else thin(rows)
        found.sort(key=lambda row: row["at"])
        return found

    def extent(self, kind: Kind) -> tuple[datetime, datetime] | None:
        """When the first and the last record of a kind was made; None: there is none.

        Only the ends of the recording are read: it may be a month.
        """
        files = list(segments.closed(self.root, kind, self.connection))
        ends: list[datetime] = []
        for ordered in (files, files[::-1]):
            for _, path in ordered:
                found = self._closed(kind, path, ALWAYS, ["at"], {})
                if found:
                    ends += [row["at"] for row in found]
                    break
        ends += [row["at"] for row in self._open(kind, ALWAYS, ["at"], {})[0]]
        return (min(ends), max(ends)) if ends else None

    def _open(
        self, kind: Kind, span: Span, names: Sequence[str], equal: Mapping[str, str]
    ) -> tuple[list[dict[str, Any]], set[str]]:
        found: list[dict[str, Any]] = []
        read: set[str] = set()
        for path in segments.leftovers(self.root, self.connection):
            try:
                lines = segments.read_lines(path)
            except FileNotFoundError:
                continue  # closed just now
            except OSError:
                self.skipped.files += 1
                continue
            read.add(path.stem)
            self.skipped.newer += lines.newer
            self.skipped.lines += max(0, lines.torn - 1)  # the last one may just be written
            for of, row in lines.rows:
                matches = all(row.get(name) == value for name, value in equal.items())
                if of is kind and row["at"] in span and matches:
                    found.append({name: row[name] for name in names})
        return found, read

    def _closed(
        self, kind: Kind, path: Path, span: Span, names: Sequence[str], equal: Mapping[str, str]
    ) -> list[dict[str, Any]]:
        import pyarrow as pa  # noqa: PLC0415  # verbs shall start at once
        import pyarrow.parquet as pq  # noqa: PLC0415

        wanted: list[tuple[str, str, object]] = [("at", ">=", span.begin), ("at", "<", span.end)]
        wanted += [(name, "==", value) for name, value in equal.items()]
        try:
            there = set(pq.read_schema(path).names)  # type: ignore[no-untyped-call]
            columns = [name for name in {*names, "at"} if name in there]
            table = pq.read_table(  # type: ignore[no-untyped-call]
                path, columns=columns, filters=wanted, partitioning=None
            )
            known = segments.schema(kind)
            types = {name: known.field(name).type for name in columns}
            rows: list[dict[str, Any]] = sound(table, types).to_pylist()
        except FileNotFoundError:
            return []  # let go of for its age just now
        except (OSError, KeyError, ValueError, OverflowError, pa.ArrowException):
            self.skipped.files += 1
            return []
        return [{name: row.get(name) for name in names} for row in rows]


def sound(table: "pa.Table", types: Mapping[str, "pa.DataType"]) -> "pa.Table":
    """The table with its columns in these types, no figure infinite. ArrowException.

    A file that somebody else has written may have anything under our names.
    """
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
