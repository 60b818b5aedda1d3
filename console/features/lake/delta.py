"""A Delta table of a lake: open it, create it, commit files that were written into its folder.

A file that no commit names is invisible. Only the process of a job itself uses this module, never
one that was forked: the library's threads do not survive a fork.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Self
from urllib.parse import quote

from console.errors import RefusedError
from console.features.history import lake_tables
from console.features.history.lake_tables import TableFile
from console.features.lake.lake import DamagedError, Lake

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

_INTERVAL = 4
"""Commits from one checkpoint to the next. Whoever opens the table reads those since the last one,
three requests to an object store for each; a checkpoint takes about twenty."""
LEFTOVER_SECONDS = 7 * 86_400.0
"""A file that no commit names may be of a run at work for so long."""
_UNREADABLE = {"deletionVectors", "columnMapping"}
_LONGEST = 200
"""Characters of a folder's name; most filesystems take 255 bytes."""
Filters = Sequence[tuple[str, str, Any]]
"""Of partitions: (column, operator, value), all of which hold."""


class LakeTable:
    """As its last commit left it when this object was made."""

    FOLDER: ClassVar[str]
    PARTITIONS: ClassVar[tuple[str, ...]]
    DESCRIPTION: ClassVar[str]

    @staticmethod
    def schema() -> pa.Schema:
        """With its partitions."""
        raise NotImplementedError

    def __init__(self, lake: Lake, table: DeltaTable) -> None:
        self.lake = lake
        self._table = table
        self._serials: dict[str, int] = {}
        """Of applications, as they were asked for: each takes as many requests as there are commits
        since the last checkpoint."""

    @classmethod
    def open(cls, lake: Lake) -> Self | None:
        """None where the lake has none yet. DamagedError, UsageError."""
        from deltalake.exceptions import TableNotFoundError  # noqa: PLC0415  # the extra's

        with cls._translated(lake):
            try:
                table = cls._opened(lake)
            except TableNotFoundError:
                root = lake.path("").rstrip("/")
                if lake_tables.has_lost_log(lake.filesystem, root, cls.FOLDER):
                    raise
                return None
            cls._require_ours(lake, table)
        return cls(lake, table)

    @classmethod
    def create(cls, lake: Lake) -> Self:
        """Where there is none yet: of several processes that do it at the same time, one does."""
        from deltalake import DeltaTable, Schema  # noqa: PLC0415  # the extra's

        lake.make_folder(cls.FOLDER)
        with cls._translated(lake), lake.masked():
            DeltaTable.create(
                lake_tables.table_uri(lake.location, lake.filesystem, lake.path(cls.FOLDER)),
                schema=Schema.from_arrow(cls.schema()),
                mode="ignore",
                partition_by=list(cls.PARTITIONS),
                name=cls.FOLDER,
                description=cls.DESCRIPTION,
                configuration={"delta.checkpointInterval": str(_INTERVAL)},
                storage_options=lake_tables.options(lake.location, lake.filesystem),
            )
            return cls(lake, cls._opened(lake))

    @classmethod
    def _opened(cls, lake: Lake) -> DeltaTable:
        return lake_tables.open_table(lake.location, lake.filesystem, lake.path(cls.FOLDER))

    @property
    def id(self) -> str:
        """The table's own: another table has another one."""
        return str(self._table.metadata().id)

    def refresh(self) -> bool:
        """As the last commit leaves it now; False: another table is in its place.

        Cheaper than to open it again: that reads the last checkpoint with many requests.
        """
        with self._translated(self.lake):
            if not self.is_there():
                return False
            self._update()
        return True

    def is_there(self) -> bool:
        """Whether no other table has taken its place, nor an older state of this one."""
        log = f"{self.FOLDER}/_delta_log/{self._table.version():020}.json"
        return self.lake.exists(log) or self._opened_again()

    def _opened_again(self) -> bool:
        """Others' checkpoints forget commits of a month ago, this one's own too: then it goes on
        from the last one. False: that is not a later one of this table."""
        from deltalake.exceptions import TableNotFoundError  # noqa: PLC0415  # the extra's

        with self._translated(self.lake):
            try:
                now = self._opened(self.lake)
            except TableNotFoundError:
                return False
            if str(now.metadata().id) != self.id or now.version() <= self._table.version():
                return False
        self._table = now
        self._serials.clear()
        return True

    def _update(self) -> None:
        from deltalake.exceptions import DeltaError  # noqa: PLC0415  # the extra's

        self._serials.clear()
        try:
            self._table.update_incremental()
        except DeltaError:
            if not self._opened_again():
                raise

    def last_serial(self, application: str) -> int:
        """Of the last transaction of this application that the table has; 0: of none."""
        if application not in self._serials:
            with self._translated(self.lake):
                self._serials[application] = self._table.transaction_version(application) or 0
        return self._serials[application]

    def commit(
        self,
        application: str,
        serial: int,
        files: Sequence[Mapping[str, Any]],
        by: Mapping[str, str] = MappingProxyType({}),
        versions: Mapping[str, int] = MappingProxyType({}),
    ) -> bool:
        """Add files, all at once; whether this call did it. False: the table has the transaction
        already. `by`: kept with the commit.

        Of each file `path` from the lake, `size`, `rows` and `partition`. `versions`: of other
        applications, to be set with it. This object stays as it was before: `refresh`.
        """
        from deltalake.exceptions import CommitFailedError  # noqa: PLC0415  # the extra's

        # Without retries it comes right after the version in which the transaction was not there.
        # The library's own check knows only transactions that the same handle has asked for.
        properties = _transaction(application, serial, by, versions, max_commit_retries=0)
        with self._translated(self.lake), self.lake.masked():
            while self.last_serial(application) < serial:
                version = self._table.version()
                try:
                    self._write(files, "append", commit_properties=properties)
                except CommitFailedError:
                    self._update()
                    if self._table.version() == version:
                        raise
                else:
                    return True
        return False

    def replace(
        self, application: str, partitions: Filters, files: Sequence[Mapping[str, Any]]
    ) -> None:
        """In one commit, these files instead of all that the partitions have. RefusedError where
        another process with this application has committed meanwhile: then nothing was done."""
        from deltalake.exceptions import CommitFailedError  # noqa: PLC0415  # the extra's

        with self._translated(self.lake), self.lake.masked():
            serial = self.last_serial(application) + 1
            # As in exchange, without retries.
            properties = _transaction(application, serial, {}, max_commit_retries=0)
            more = {"commit_properties": properties, "partition_filters": list(partitions)}
            while True:
                version = self._table.version()
                try:
                    self._write(files, "overwrite", **more)
                except CommitFailedError as error:
                    self._update()
                    others = self._table.version() > version
                    if others and self.last_serial(application) < serial:
                        continue  # of other partitions
                    raise RefusedError(
                        f"Another run changed the table {self.lake.path(self.FOLDER)} meanwhile.",
                        why=lake_tables.first_line(error),
                        next_step="Nothing was changed by this run. Run it again.",
                    ) from error
                self._update()  # it knows its own transaction from now on
                return

    def exchange(
        self, removed: Sequence[str], added: Sequence[Mapping[str, Any]], by: Mapping[str, str]
    ) -> bool:
        """In one commit, these files instead of those; False, and nothing is done, where another
        one has taken one of those out.

        `by`: kept with the commit. That no row was changed is not said: others' compactions would
        then take the same files out once more, and the rows would be there twice.
        """
        from deltalake import CommitProperties  # noqa: PLC0415  # the extra's
        from deltalake.exceptions import CommitFailedError  # noqa: PLC0415
        from deltalake.transaction import RemoveAction  # noqa: PLC0415

        # Without retries: they would let two commits pass that take out the same file, if the
        # first one has changed no data, and the rows would be there twice.
        properties = CommitProperties(custom_metadata=dict(by), max_commit_retries=0)
        with self._translated(self.lake), self.lake.masked():
            while True:
                here = {file.path: file for file in self.entries()}
                if not here.keys() >= set(removed):
                    return False
                now = int(time.time() * 1_000)
                gone = [
                    RemoveAction(
                        path=path.removeprefix(f"{self.FOLDER}/"),
                        data_change=True,
                        deletion_timestamp=now,
                        size=here[path].size,
                        partition_values=dict(here[path].partition),
                    )
                    for path in removed
                ]
                version = self._table.version()
                try:
                    self._write(added, "append", gone, commit_properties=properties)
                except CommitFailedError:
                    self._update()
                    if self._table.version() == version:
                        raise
                else:
                    self._update()
                    return True

    def _write(
        self, files: Sequence[Mapping[str, Any]], mode: str, others: Sequence[Any] = (), **more: Any
    ) -> None:
        from deltalake import PostCommitHookProperties  # noqa: PLC0415  # the extra's

        # Old commits are looked for only with a checkpoint: it takes a list of all.
        due = (self._table.version() + 2) % _INTERVAL == 0
        self._table.create_write_transaction(
            [*others, *(self._add(file) for file in files)],
            mode,
            self._table.schema(),
            list(self.PARTITIONS),
            post_commithook_properties=PostCommitHookProperties(cleanup_expired_logs=due),
            **more,
        )

    def vacuum(self, kept_seconds: float) -> int:
        """Remove the files that commits took out so long ago; and those that no commit ever named,
        which killed runs leave, once they are older than any run. How many.

        Nothing is written for it, so that it helps where a disk is full.
        """
        hours = math.ceil(kept_seconds / 3_600)
        unnamed = max(hours, math.ceil(LEFTOVER_SECONDS / 3_600))
        with self._translated(self.lake):
            self._update()
            listed = partial(self._table.vacuum, dry_run=True, enforce_retention_duration=False)
            names = {*listed(hours), *listed(unnamed, full=True)}
        there = [path for path in self.lake.data_files(self.FOLDER) if _below(path) in names]
        for path in there:
            self.lake.remove(path)
        return len(there)

    def checkpoint(self) -> None:
        """Readers begin here; commits of a month ago are forgotten."""
        with self._translated(self.lake), self.lake.masked():
            self._table.create_checkpoint()
            self._table.cleanup_metadata()

    def history(self, most: int) -> list[dict[str, Any]]:
        """The last commits whose log is kept, newest first."""
        with self._translated(self.lake):
            return self._table.history(most)

    def entries(self) -> list[TableFile]:
        """Its files; their paths begin at the lake."""
        with self._translated(self.lake):
            return lake_tables.files_of(self._table, self.FOLDER)

    def _add(self, file: Mapping[str, Any]) -> Any:
        from deltalake.transaction import AddAction  # noqa: PLC0415  # the extra's

        # No values of columns: if some are known, readers by Arrow take those of others for null,
        # and skip the file. The least and greatest values are in the files themselves.
        return AddAction(
            path=file["path"].removeprefix(f"{self.FOLDER}/"),
            size=file["size"],
            partition_values=file["partition"],
            modification_time=int(time.time() * 1_000),
            data_change=True,
            stats=json.dumps({"numRecords": file["rows"]}),
        )

    @classmethod
    def _require_ours(cls, lake: Lake, table: DeltaTable) -> None:
        """DamagedError for a table that could not be read with this console's files in it."""
        from deltalake import Schema  # noqa: PLC0415  # the extra's

        columns = {field.name: str(field.type) for field in table.schema().fields}
        ours = {field.name: str(field.type) for field in Schema.from_arrow(cls.schema()).fields}
        partitions = table.metadata().partition_columns
        if not columns.items() >= ours.items() or tuple(partitions) != cls.PARTITIONS:
            raise DamagedError(
                f"The table {lake.path(cls.FOLDER)} is not of this console.",
                why=f"It has the columns {', '.join(sorted(columns))}, or others of their types, "
                f"and the partitions {', '.join(partitions) or '(none)'}.",
                next_step="Nothing was changed. Name another folder with --lake.",
            )
        # Under these a row of a file may be no row of the table.
        if unknown := _UNREADABLE.intersection(table.protocol().reader_features or ()):
            raise DamagedError(
                f"The table {lake.path(cls.FOLDER)} has features that this console cannot read: "
                f"{', '.join(sorted(unknown))}.",
                why="Another program turned them on.",
                next_step="Nothing was changed. Drop them there (ALTER TABLE ... DROP FEATURE), or "
                "name another folder with --lake.",
            )

    @classmethod
    @contextmanager
    def _translated(cls, lake: Lake) -> Iterator[None]:
        """The library's errors as ConsoleErrors."""
        from deltalake.exceptions import DeltaError  # noqa: PLC0415  # the extra's

        try:
            yield
        except (DeltaError, OSError, ValueError) as error:
            raise lake_tables.table_error(lake.location, cls.FOLDER, error, DamagedError) from error


def folder_value(value: str) -> str:
    """In the name of a folder: all of it, or its beginning and a digest."""
    quoted = quote(value, safe="")
    if len(quoted) <= _LONGEST:
        return quoted
    beginning = re.sub("%.?$", "", quoted[: _LONGEST - 17])
    return f"{beginning}-{hashlib.sha256(value.encode()).hexdigest()[:16]}"


def _transaction(
    application: str,
    serial: int,
    by: Mapping[str, str],
    versions: Mapping[str, int] = MappingProxyType({}),
    **more: Any,
) -> Any:
    from deltalake import CommitProperties, Transaction  # noqa: PLC0415  # the extra's

    return CommitProperties(
        app_transactions=[
            Transaction(name, version)
            for name, version in {application: serial, **versions}.items()
        ],
        custom_metadata={"application": application, "serial": str(serial), **by},
        **more,
    )


def _below(path: str) -> str:
    """Of a path from the lake, that from the table."""
    return path.partition("/")[2]
