"""Delete exactly the exported rows from the database in small batches, and always know which ones.

Before a batch is deleted, its keys (an intent) are written to the lake with the count that the
run's action will have in the audit: the batch's own transaction counts it there. So after a kill
the audit says which intents were committed.

A row is a key and a mark: its archived_at or, of a done row, its attempts. Another row that has the
key later, or in another database, has another mark.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from console import audit, sql
from console.audit import Ledger
from console.catalog import Queue
from console.engines import Session, product_of, retry_transient
from console.errors import ConsoleError
from console.pipeline.archive import digests, files
from console.pipeline.archive.digests import ColumnDigests, FileDigest
from console.pipeline.archive.export import range_manifest
from console.pipeline.archive.files import SCHEMA, Writer, batches, pc, pq
from console.pipeline.archive.plan import ARCHIVE, ArchivePlan, Range, scope
from console.pipeline.lake import DamagedError, Lake, unique_path

if TYPE_CHECKING:
    from sqlalchemy import Connection


BATCH = 4_000
"""Each batch is made durable in the lake and in the database, whatever its size. With 5,000 locks
SQL Server would lock the whole table."""
_RETRY_SECONDS = (0.1, 0.5, 2.0)
"""Rows locked by others are tried again after these pauses; then they stay, and leave the lake."""
_NAME = re.compile(r"(?P<range>\d{6,})-(?P<action>\d+)-(?P<batch>\d+)\.json")


def key_runs(keys: Iterable[int]) -> list[list[int]]:
    """Sorted keys as [first, how many in a row]."""
    runs: list[list[int]] = []
    for key in keys:
        if runs and runs[-1][0] + runs[-1][1] == key:
            runs[-1][1] += 1
        else:
            runs.append([key, 1])
    return runs


def keys_of(runs: Iterable[Sequence[int]]) -> set[int]:
    return {key for first, count in runs for key in range(first, first + count)}


def exported(lake: Lake, manifest: Mapping[str, Any], deleted: set[int]) -> dict[int, str]:
    """Key -> mark of all rows in a range's files. DamagedError.

    A file that a killed run rewrote differs from its manifest: it has only rows already deleted.
    Any other difference is damage.
    """
    found: dict[int, str] = {}
    for entry in manifest["files"]:
        keys, as_written = file_keys(lake, entry, manifest["source"])
        if not as_written and keys.keys() - deleted:
            raise _unusable(lake, entry["path"], "Its keys are not those that were written.")
        found |= keys
    return found


def file_keys(lake: Lake, entry: Mapping[str, Any], source: str) -> tuple[dict[int, str], bool]:
    """Key -> mark of one file, and whether they match its manifest. DamagedError."""
    names = ["archive_id", "archived_at"] if source == ARCHIVE else ["id", "attempts"]
    found: dict[int, str] = {}
    digest = ColumnDigests()
    try:
        with lake.reading(entry["path"]) as opened, pq.ParquetFile(opened) as file:
            for batch in batches(file, names):
                digest.add(batch)
                keys, marks = (batch.column(name) for name in names)
                if source == ARCHIVE:  # UTC, without its zone
                    marks = marks.cast(pa.timestamp("us"))
                texts = marks.cast(pa.string()).to_pylist()
                found |= zip(map(int, keys.to_pylist()), texts, strict=True)
    except (OSError, ValueError, TypeError) as error:
        raise _unusable(lake, entry["path"], str(error).splitlines()[0]) from error
    written = entry.get(digests.DIGESTS)  # manifests of earlier versions have none
    as_written = written is None or digest.digests.items() <= written.items()
    return found, as_written and len(found) == entry["rows"]


def _unusable(lake: Lake, path: str, why: str) -> DamagedError:
    return DamagedError(
        f"{lake.path(path)} cannot be used.",
        why=why,
        next_step="Nothing more is deleted. Put the file back from a backup of the lake, then run "
        "it again. Leave the other files as they are: rows that only they have are in no database.",
    )


class Intents:
    """The intents of one plan, and which of them were committed."""

    def __init__(self, lake: Lake, plan: ArchivePlan) -> None:
        self._lake = lake
        self._folder = f"{plan.manifests}/deletes"
        self._names: defaultdict[int, list[str]] = defaultdict(list)
        self.actions: set[int] = set()
        self.committed: dict[int, int] = {}
        """By action, the rows that the audit counts."""
        for name in lake.names(self._folder):
            if match := _NAME.fullmatch(name):
                self._names[int(match["range"])].append(name)
                self.actions.add(int(match["action"]))

    def _name(self, part: int, action_id: int, batch: int) -> str:
        return f"{part:06}-{action_id}-{batch:06}.json"

    def add(self, part: int, action_id: int, batch: int, content: Mapping[str, Any]) -> None:
        """Before the batch deletes."""
        name = self._name(part, action_id, batch)
        self._lake.write_json(f"{self._folder}/{name}", content)
        if name not in self._names[part]:
            self._names[part].append(name)

    def drop(self, part: int, action_id: int, batch: int) -> None:
        """The server rolled the batch back."""
        name = self._name(part, action_id, batch)
        if name in self._names[part]:
            self._lake.discard(f"{self._folder}/{name}")
            self._names[part].remove(name)

    def deleted(self, part: int) -> set[int]:
        """The keys of a range that this plan has deleted from the database, as far as its intents
        can be read."""
        found: set[int] = set()
        for name in self._names[part]:
            with suppress(FileNotFoundError, DamagedError):
                intent = self._lake.read_json(f"{self._folder}/{name}")
                if _is_intent(intent) and intent["done"] <= self.committed.get(intent["action"], 0):
                    found |= keys_of(intent["keys"])
        return found

    def clear(self) -> None:
        """Once the plan is done: the files hold what was deleted, and nothing else."""
        for names in self._names.values():
            for name in names:
                self._lake.discard(f"{self._folder}/{name}")
        self._names.clear()


def _is_intent(content: Mapping[str, Any]) -> bool:
    keys = content.get("keys")
    return (
        isinstance(content.get("action"), int)
        and isinstance(content.get("done"), int)
        and isinstance(keys, list)
        and all(
            isinstance(run, list) and len(run) == 2 and all(isinstance(n, int) for n in run)
            for run in keys
        )
    )


class Deleter:
    """Deletes for one action, on one session."""

    def __init__(
        self,
        session: Session,
        queue: Queue,
        plan: ArchivePlan,
        intents: Intents,
        action_id: int,
        renew: Callable[[Connection], None],
        *,
        batch_rows: int = BATCH,
    ) -> None:
        """`renew`, in each batch's transaction, raises where another run may be at work."""
        self._session = session
        self._queue = queue
        self._plan = plan
        self._intents = intents
        self._action_id = action_id
        self._renew = renew
        self._batch_rows = batch_rows
        self._batch = 0
        self.deleted: set[int] = set()
        """Of the range that is being deleted, what this action has deleted."""
        self.done = 0
        """Rows that this action has deleted."""

    def range(self, part: Range, keys: Mapping[int, str], before: set[int]) -> Iterator[int]:
        """Delete those of a range's exported rows that are still there, but for those deleted
        `before`; yields batch counts."""
        self.deleted = set()
        left = sorted(keys.keys() - before)
        for pause in (*_RETRY_SECONDS, None):
            missed: list[int] = []
            for selected in self._batches(left):
                deleted = self._delete(part, selected, keys)
                missed += [key for key in selected if key not in deleted]
                yield len(deleted)
            left = self._locked_by_others(part, missed, keys)
            if not left or pause is None:
                return
            time.sleep(pause)

    def _batches(self, keys: Sequence[int]) -> Iterator[Sequence[int]]:
        for at in range(0, len(keys), self._batch_rows):
            yield keys[at : at + self._batch_rows]

    def present(self, part: Range, keys: Mapping[int, str], of: Iterable[int]) -> set[int]:
        """Those of these exported rows that the database still has."""
        found: set[int] = set()
        for selected in self._batches(sorted(of)):
            with self._session.transaction("find exported rows") as connection:
                within = self._scope(connection, part)
                values = _rows(connection, selected, keys)
                found |= set(sql.values(connection, int, "pipeline.present_rows", within, **values))
        return found

    def _delete(self, part: Range, selected: Sequence[int], keys: Mapping[int, str]) -> set[int]:
        """One batch; the keys of the rows that it deleted."""
        self._batch += 1

        def batch() -> set[int]:
            # Where it is retried, the server is known to have rolled it back.
            self._intents.drop(part.number, self._action_id, self._batch)
            with self._session.transaction("delete exported rows") as connection:
                self._renew(connection)
                locked = self._matching(connection, part, selected, keys, lock="yes")
                if locked:
                    self._delete_locked(connection, part, locked, keys, len(selected))
            return set(locked)

        deleted = retry_transient(batch)
        self.done += len(deleted)
        self.deleted |= deleted
        return deleted

    def _delete_locked(
        self,
        connection: Connection,
        part: Range,
        locked: Sequence[int],
        keys: Mapping[int, str],
        selected: int,
    ) -> None:
        intent = {
            "action": self._action_id,
            "done": self.done + len(locked),
            "keys": key_runs(locked),
        }
        self._intents.add(part.number, self._action_id, self._batch, intent)
        deleted = sql.value(
            connection,
            int,
            "pipeline.delete_rows",
            self._scope(connection, part),
            **_rows(connection, locked, keys),
        )
        if deleted != len(locked):
            raise ConsoleError(
                "A batch did not delete all the rows that it had locked: it was rolled back.",
                why=f"{len(locked):,} rows were locked, {deleted:,} deleted.",
                next_step="This is a defect, or a trigger on the table: check before you go on.",
            )
        skipped = {"popped, changed or in other hands": selected - deleted}
        audit.batch(connection, self._action_id, Ledger(selected, deleted, deleted, skipped))

    def _matching(
        self,
        connection: Connection,
        part: Range,
        selected: Sequence[int],
        keys: Mapping[int, str],
        *,
        lock: str,
    ) -> list[int]:
        """The keys of the rows that the plan still covers; with `lock`, of those it could lock."""
        within = self._scope(connection, part, lock=lock)
        values = _rows(connection, selected, keys)
        return sql.values(connection, int, "pipeline.lock_rows", within, **values)

    def _locked_by_others(
        self, part: Range, missed: Sequence[int], keys: Mapping[int, str]
    ) -> list[int]:
        found: list[int] = []
        for selected in self._batches(missed):
            with self._session.transaction("find exported rows") as connection:
                found += self._matching(connection, part, selected, keys, lock="no")
        return found

    def _scope(self, connection: Connection, part: Range, **conditions: str) -> sql.Scope:
        within = scope(connection, self._queue, part.source, **self._plan.values(part.source))
        return sql.Scope(within.values, {**within.options, **conditions}, within.roles)


def _rows(
    connection: Connection, selected: Sequence[int], keys: Mapping[int, str]
) -> dict[str, object]:
    array = product_of(connection).array
    return {
        "keys": array([str(key) for key in selected]),
        "marks": array([keys[key] for key in selected]),
    }


# Withdraw from the lake the exported rows that were not there to be deleted: restored meanwhile, or
# locked by others. Then a range's files have exactly what the database has not. Idempotent.


def withdraw(
    lake: Lake,
    plan: ArchivePlan,
    part: Range,
    manifest: Mapping[str, Any],
    kept: set[int],
    require: Callable[[], None],
) -> Mapping[str, Any]:
    """The range's manifest after it; its files have the rows to keep and no others.

    `require` is called before each change, and raises where this run may no longer write.
    """
    if manifest["rows"] == len(kept):
        return manifest
    left: list[dict[str, Any]] = []
    for entry in manifest["files"]:
        path = entry["path"]
        keys, _ = file_keys(lake, entry, part.source)
        if not keys.keys() & kept:
            continue
        if keys.keys() - kept:
            require()
            path, digest = _rewrite(lake, entry, part.source, kept, plan.payload_kind)
        elif len(keys) == entry["rows"]:
            left.append(entry)
            continue
        else:  # rewritten in place by an earlier version, which was killed afterwards
            digest = ColumnDigests()
            files.read(lake, path, plan.payload_kind, digest)
        left.append({"path": path, "size": lake.size(path), **digest.as_json()})
    if sum(entry["rows"] for entry in left) != len(kept):
        raise _unusable(
            lake, plan.range_path(part.number), "The files do not hold each row to keep once."
        )
    new = range_manifest(plan, part, left)
    require()
    lake.write_json(plan.range_path(part.number), new)
    return new


def _rewrite(
    lake: Lake, entry: Mapping[str, Any], source: str, kept: set[int], payload_kind: str
) -> tuple[str, ColumnDigests]:
    """Write the rows to keep to a new file; its path and digest.

    The database no longer has these rows. So the old file is compared with its manifest as it is
    read, and the new one is read back; the old one stays until the plan is done.
    """
    path, key = entry["path"], "archive_id" if source == ARCHIVE else "id"
    key_type = SCHEMA.field(key).type
    values = pa.array([k if source == ARCHIVE else str(k) for k in sorted(kept)], key_type)
    before, new_path = digests.digest_like(entry), unique_path(path)

    def check(written_path: str) -> None:
        _require_same(lake, path, entry, before)
        read_back = files.read(lake, written_path, payload_kind, ColumnDigests())
        _require_same(lake, written_path, writer.digest.as_json(), read_back)

    with (
        lake.reading(path) as opened,
        pq.ParquetFile(opened) as file,
        lake.writing(new_path, check=check) as written,
        Writer(written, payload_kind) as writer,
    ):
        for batch in batches(file):
            before.add(batch)
            writer.write(batch.filter(pc.is_in(batch.column(key), value_set=values)))
    return new_path, writer.digest


def _require_same(lake: Lake, path: str, entry: Mapping[str, Any], digest: FileDigest) -> None:
    if not digests.matches(entry, digest):
        raise _unusable(lake, path, f"It has {files.difference(entry, digest)}.")
