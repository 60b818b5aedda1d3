"""Exactly the exported rows out of the database, in small batches, and always known which.

Before a batch is deleted its keys are written to the lake, with the count that the run's action
will have in the audit once the transaction is committed: it counts the batch in that transaction.
So after a kill the audit says of each such intent whether it came true.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from console import audit, sql
from console.audit import Ledger
from console.catalog import Queue
from console.engines import Session, product_of, retry_transient
from console.errors import ConsoleError
from console.pipeline.archive import contents, files
from console.pipeline.archive.contents import Contents, Tally
from console.pipeline.archive.export import range_manifest
from console.pipeline.archive.files import SCHEMA, Writer, batches, pc, pq
from console.pipeline.archive.plan import ARCHIVE, ArchivePlan, Range, scope
from console.pipeline.lake import DamagedError, Lake

if TYPE_CHECKING:
    from sqlalchemy import Connection


BATCH = 4_000
"""Each batch is made durable in the lake and in the database, whatever its size. With 5,000 locks
SQL Server would lock the whole table."""
_PASSES_SECONDS = (0.1, 0.5, 2.0)
"""Rows that others hold are tried again after such pauses; then they stay, and leave the lake."""
_NAME = re.compile(r"(?P<range>\d{6,})-(?P<action>\d+)-(?P<batch>\d+)\.json")


def runs(keys: Iterable[int]) -> list[list[int]]:
    """Sorted keys as [first, how many in a row]."""
    found: list[list[int]] = []
    for key in keys:
        if found and found[-1][0] + found[-1][1] == key:
            found[-1][1] += 1
        else:
            found.append([key, 1])
    return found


def keys_of(told: Iterable[Sequence[int]]) -> set[int]:
    return {key for first, count in told for key in range(first, first + count)}


def exported(lake: Lake, manifest: Mapping[str, Any], deleted: set[int]) -> dict[int, int]:
    """Key -> attempts of all that a range's files have now. DamagedError.

    Keys that are to be deleted are those that were verified. A file that a run rewrote before it
    was killed is not as its manifest says, and has only rows that are deleted already.
    """
    found: dict[int, int] = {}
    for file in manifest["files"]:
        keys, as_written = file_keys(lake, file, manifest["source"])
        if not as_written and keys.keys() - deleted:
            raise _unusable(lake, file["path"], "Its keys are not those that were written.")
        found |= keys
    return found


def file_keys(lake: Lake, told: Mapping[str, Any], source: str) -> tuple[dict[int, int], bool]:
    """Key -> attempts of one file, and whether they are as its manifest tells. DamagedError."""
    names = ["archive_id" if source == ARCHIVE else "id", "attempts"]
    found: dict[int, int] = {}
    tally = Contents()
    try:
        with lake.reading(told["path"]) as opened, pq.ParquetFile(opened) as file:
            for batch in batches(file, names):
                tally.add(batch)
                keys, attempts = (batch.column(name).to_pylist() for name in names)
                found |= zip(map(int, keys), attempts, strict=True)
    except (OSError, ValueError, TypeError) as error:
        raise _unusable(lake, told["path"], str(error).splitlines()[0]) from error
    digests = told.get(contents.DIGESTS)
    # A manifest of an earlier version does not tell it of single columns.
    as_written = digests is None or tally.digests.items() <= digests.items()
    return found, as_written and len(found) == told["rows"]


def _unusable(lake: Lake, path: str, why: str) -> DamagedError:
    return DamagedError(
        f"{lake.path(path)} cannot be used.",
        why=why,
        next_step="Nothing more is deleted. The manifests next to its plan say which of its "
        "rows are deleted; restore the file.",
    )


class Intents:
    """What batches wanted to delete, and which of them did. Of one plan."""

    def __init__(self, lake: Lake, plan: ArchivePlan) -> None:
        self._lake = lake
        self._folder = f"{plan.manifests}/deletes"
        self._names: defaultdict[int, list[str]] = defaultdict(list)
        self._done: dict[int, int] = {}
        for name in lake.names(self._folder):
            if match := _NAME.fullmatch(name):
                self._names[int(match["range"])].append(name)
                self._done[int(match["action"])] = 0

    @property
    def actions(self) -> list[int]:
        """The actions that deleted."""
        return sorted(self._done)

    def counted(self, action_id: int, done: int) -> None:
        """What the audit says of one of them."""
        self._done[action_id] = done

    def path(self, part: int, action_id: int, number: int) -> str:
        """Where a batch tells what it wants."""
        return f"{self._folder}/{part:06}-{action_id}-{number:06}.json"

    def add(self, part: int, action_id: int, number: int, content: Mapping[str, Any]) -> None:
        """Before the batch deletes."""
        path = self.path(part, action_id, number)
        self._lake.write_json(path, content)
        name = path.rsplit("/", 1)[-1]
        if name not in self._names[part]:
            self._names[part].append(name)

    def drop(self, part: int, action_id: int, number: int) -> None:
        """The server undid the batch: it did not come true."""
        path = self.path(part, action_id, number)
        name = path.rsplit("/", 1)[-1]
        if name in self._names[part]:
            self._lake.remove(path)
            self._names[part].remove(name)

    def deleted(self, part: int) -> set[int]:
        """The keys of a range that are gone from the database by this plan's doing."""
        found: set[int] = set()
        for name in self._names[part]:
            told = self._read(name)
            if told["done"] <= self._done[told["action"]]:
                found |= keys_of(told["keys"])
        return found

    def _read(self, name: str) -> dict[str, Any]:
        path = f"{self._folder}/{name}"
        told = self._lake.read_json(path)
        if not _is_batch(told) or told["action"] not in self._done:
            raise DamagedError(
                f"{self._lake.path(path)} is damaged.",
                why="It does not say what a batch should delete.",
                next_step="Nothing more is deleted. Restore the file.",
            )
        return told

    def clear(self) -> None:
        """When the plan is done: the files hold what was deleted, and nothing else."""
        for names in self._names.values():
            for name in names:
                self._lake.remove(f"{self._folder}/{name}")
        self._names.clear()


def _is_batch(told: Mapping[str, Any]) -> bool:
    keys = told.get("keys")
    return (
        isinstance(told.get("action"), int)
        and isinstance(told.get("done"), int)
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
        *,
        batch: int = BATCH,
    ) -> None:
        self._session = session
        self._queue = queue
        self._plan = plan
        self._intents = intents
        self._action_id = action_id
        self._batch_rows = batch
        self._number = 0
        self.done = 0
        """So many rows did this action delete."""

    def range(self, part: Range, keys: Mapping[int, int]) -> Iterator[int]:
        """Delete what is still there of a range's exported rows; yields each batch's count."""
        left = sorted(keys.keys() - self._intents.deleted(part.number))
        for pause in (*_PASSES_SECONDS, None):
            missed: list[int] = []
            for at in range(0, len(left), self._batch_rows):
                chosen = left[at : at + self._batch_rows]
                gone = self._one(part, chosen, keys)
                missed += [key for key in chosen if key not in gone]
                yield len(gone)
            left = self._still_there(part, missed, keys)
            if not left or pause is None:
                return
            time.sleep(pause)

    def _one(self, part: Range, chosen: Sequence[int], keys: Mapping[int, int]) -> set[int]:
        self._number += 1
        number = self._number

        def batch() -> set[int]:
            # A batch that runs again was undone by the server, for certain.
            self._intents.drop(part.number, self._action_id, number)
            with self._session.transaction("delete exported rows") as connection:
                held = self._held(connection, part, chosen, keys, lock="yes")
                if held:
                    self._delete(connection, part, held, number, len(chosen))
            return set(held)

        gone = retry_transient(batch)
        self.done += len(gone)
        return gone

    def _delete(
        self, connection: Connection, part: Range, held: Sequence[int], number: int, selected: int
    ) -> None:
        self._intents.add(
            part.number,
            self._action_id,
            number,
            {"action": self._action_id, "done": self.done + len(held), "keys": runs(held)},
        )
        deleted = sql.value(
            connection,
            int,
            "pipeline.delete_rows",
            self._scope(connection, part),
            keys=product_of(connection).array([str(key) for key in held]),
        )
        if deleted != len(held):
            raise ConsoleError(
                "A batch did not delete all that it had locked: it was rolled back.",
                why=f"{len(held):,} rows were locked, {deleted:,} deleted.",
                next_step="This is a defect, or a trigger on the table: check before you go on.",
            )
        skipped = {"popped, changed or in other hands": selected - deleted}
        ledger = Ledger(selected, deleted, deleted, skipped)
        audit.batch(connection, self._action_id, ledger)

    def _held(
        self,
        connection: Connection,
        part: Range,
        chosen: Sequence[int],
        keys: Mapping[int, int],
        *,
        lock: str,
    ) -> list[int]:
        array = product_of(connection).array
        values = {"keys": array([str(key) for key in chosen])}
        if part.source != ARCHIVE:
            values["attempts"] = array([str(keys[key]) for key in chosen])
        return sql.values(
            connection,
            int,
            "pipeline.lock_rows",
            self._scope(connection, part, lock=lock),
            **values,
        )

    def _still_there(
        self, part: Range, missed: Sequence[int], keys: Mapping[int, int]
    ) -> list[int]:
        """Of those that were not to be had: those that others only hold."""
        found: list[int] = []
        for at in range(0, len(missed), self._batch_rows):
            chosen = missed[at : at + self._batch_rows]
            with self._session.transaction("find exported rows") as connection:
                found += self._held(connection, part, chosen, keys, lock="no")
        return found

    def _scope(self, connection: Connection, part: Range, **conditions: str) -> sql.Scope:
        within = scope(connection, self._queue, part.source, **self._plan.values(part.source))
        return sql.Scope(within.values, {**within.options, **conditions}, within.roles)


# Out of the lake again: exported rows that were not there to be deleted.
#
# Somebody restored them meanwhile, or holds them. Afterwards the files of a range have exactly
# what its plan deleted. Done again, it does nothing.


def withdraw(
    lake: Lake,
    plan: ArchivePlan,
    part: Range,
    manifest: Mapping[str, Any],
    deleted: set[int],
    require: Callable[[], None],
) -> Mapping[str, Any]:
    """The range's manifest, whose files have what was deleted and no more.

    `require` raises where the run may no longer write: it is asked before each change.
    """
    if manifest["rows"] == len(deleted):
        return manifest
    left: list[dict[str, Any]] = []
    for told in manifest["files"]:
        path = told["path"]
        keys, _ = file_keys(lake, told, part.source)
        if not keys.keys() & deleted:
            continue
        if keys.keys() - deleted:
            require()
            path, now = _rewrite(lake, told, part.source, deleted, plan.payload_kind)
        elif len(keys) == told["rows"]:
            left.append(told)
            continue
        else:
            # A run was killed when it had rewritten it.
            now = Contents()
            files.read(lake, path, plan.payload_kind, now)
        left.append({"path": path, "size": lake.size(path), **now.as_json()})
    if sum(file["rows"] for file in left) != len(deleted):
        raise _unusable(
            lake, plan.range_path(part.number), "The files do not hold each deleted row once."
        )
    new = range_manifest(plan, part, left)
    require()
    lake.write_json(plan.range_path(part.number), new)
    return new


def _rewrite(
    lake: Lake, told: Mapping[str, Any], source: str, deleted: set[int], kind: str
) -> tuple[str, Contents]:
    """The file with those rows only, in place of it or beside it, and where that is: read as it was
    verified, and read back before it takes that place, for its rows are nowhere else."""
    path, key = told["path"], "archive_id" if source == ARCHIVE else "id"
    type_of = SCHEMA.field(key).type
    wanted = pa.array([str(k) if source != ARCHIVE else k for k in sorted(deleted)], type_of)
    before, now = contents.tally_like(told), lake.new_path(path)

    def check(beside: str) -> None:
        _require_same(lake, path, told, before)
        _require_same(
            lake, beside, writer.contents.as_json(), files.read(lake, beside, kind, Contents())
        )

    with (
        lake.reading(path) as opened,
        pq.ParquetFile(opened) as file,
        lake.writing(now, check=check) as written,
        Writer(written, kind) as writer,
    ):
        for batch in batches(file):
            before.add(batch)
            writer.write(batch.filter(pc.is_in(batch.column(key), value_set=wanted)))
    return now, writer.contents


def _require_same(lake: Lake, path: str, told: Mapping[str, Any], found: Tally) -> None:
    if not contents.same(told, found):
        raise _unusable(lake, path, f"It has {files.difference(told, found)}.")
