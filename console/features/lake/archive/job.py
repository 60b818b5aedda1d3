"""A whole archive run: it finishes the plan that it finds, then carries out new ones."""

import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from console import sql
from console.catalog import Queue, audit, decisions
from console.catalog.audit import Outcome, Subject
from console.engines import Database
from console.errors import ConsoleError, RefusedError, UsageError
from console.features.lake import delta, leases
from console.features.lake.archive import compare, delete, export, files
from console.features.lake.archive import plan as planning
from console.features.lake.archive.export import url_for_tasks
from console.features.lake.archive.plan import (
    COMMITTED,
    NONE,
    RESERVED,
    ArchiveRequest,
    Cutoffs,
    LakePlan,
    Part,
    Rows,
)
from console.features.lake.lake import DamagedError, Lake
from console.features.lake.progress import PhaseProgress, no_progress
from console.features.lake.spark import Security, Tasks
from console.features.lake.table import MessagesTable, application_of
from console.formats import duration, numbered, plain, row_rate
from console.plan import Plan, Result, job_plan

if TYPE_CHECKING:
    from sqlalchemy import Connection

VERB = "pipeline archive"
OWN_CONNECTIONS = 2
"""To the database: one that renews the run's lease, and one that reserves and notes."""
PHASES = ("compare", "export", "verify", "delete")


@dataclass(frozen=True)
class RowsToArchive:
    """The rows of a queue's archive that may go into the lake."""

    queue: Queue
    lake: str
    unfinished: LakePlan | None
    left: int
    """Rows that the unfinished plan has reserved."""
    found: Rows
    cutoffs: Cutoffs

    @property
    def rows(self) -> int:
        """At most so many rows leave the database."""
        return self.found.rows + self.left

    def lines(self) -> list[str]:
        rows, first = self.found, self.unfinished
        lines = [
            f"{VERB} {plain(self.queue.label)}: {numbered(rows.rows, 'row')} "
            f"into {plain(self.lake)}, then deleted"
        ]
        if rows.rows:
            lines.append(f"  archived {_utc(rows.oldest)} to {_utc(rows.newest)} UTC")
        lines.append(
            f"  popped rows up to {_utc(self.cutoffs.cutoff)} UTC, others up to "
            f"{_utc(self.cutoffs.before)} UTC"
        )
        if first is not None:
            lines.append(
                f"  plan {first.serial} is finished first: {numbered(self.left, 'row')} "
                f"{_STATES[first.state]}"
            )
        return [*lines, "  restore brings none of it back; pipeline replay does"]

    def as_json(self, spark: Security | None = None) -> dict[str, Any]:
        return {
            "verb": VERB,
            "queue": self.queue.name,
            "schema": self.queue.schema,
            "lake": self.lake,
            "rows": self.found.rows,
            "oldest": _utc(self.found.oldest) or None,
            "newest": _utc(self.found.newest) or None,
            "cutoff": _utc(self.cutoffs.cutoff),
            "before": _utc(self.cutoffs.before),
            "unfinished": None if self.unfinished is None else self.unfinished.serial,
            "unfinished_rows": self.left,
            "spark": None if spark is None else spark.as_json(),
        }


def plan(
    database: Database,
    rows: RowsToArchive,
    run: Callable[[], Result],
    spark: Security,
    *,
    production: bool,
) -> Plan:
    subject, lines = Subject.of(database, rows.queue, VERB), [*rows.lines(), f"  {spark.line}"]
    return job_plan(
        subject,
        lines,
        run,
        rows.as_json(spark),
        queue=rows.queue,
        rows=rows.rows,
        production=production,
    )


_STATES = {RESERVED: "reserved for the lake", COMMITTED: "in the lake, still to be deleted here"}


def _utc(at: datetime | None) -> str:
    if at is None:
        return ""
    return at.astimezone(UTC).replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")


@dataclass
class ArchiveResult:
    """Of one plan."""

    plan: int
    """Its serial number."""
    exported: int = 0
    deleted: int = 0
    files: int = 0
    bytes: int = 0
    """Of payload, in the lake."""
    size: int = 0
    """Of the files."""
    in_lake_before: int = 0
    """Rows that the lake had already: they were not exported again."""
    seconds: dict[str, float] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    """By phase, what this run moved; not what earlier runs had done."""

    @property
    def _speeds(self) -> dict[str, float]:
        """Rows a second of each phase."""
        return {
            phase: self.rows.get(phase, 0) / seconds if seconds else 0.0
            for phase, seconds in self.seconds.items()
        }

    @property
    def rows_per_second(self) -> dict[str, float]:
        return {phase: round(speed, 1) for phase, speed in self._speeds.items()}

    def as_json(self) -> dict[str, Any]:
        seconds = {phase: round(value, 3) for phase, value in self.seconds.items()}
        return {**vars(self), "seconds": seconds, "rows_per_second": self.rows_per_second}

    def lines(self) -> list[str]:
        speeds = self._speeds
        phases = ", ".join(
            f"{phase} {duration(self.seconds[phase])} ({row_rate(speeds[phase])} rows/s)"
            for phase in PHASES
            if phase in self.seconds
        )
        lines = [
            f"plan {self.plan}: exported {self.exported:,}, deleted {self.deleted:,}; "
            f"{self.files:,} files, {self.bytes:,} bytes of payload",
            f"  {phases}",
        ]
        if self.in_lake_before:
            lines.append(f"  {numbered(self.in_lake_before, 'row')} were in the lake already")
        return lines


def find(database: Database, queue: Queue, lake: Lake, request: ArchiveRequest) -> RowsToArchive:
    """What a run would take. Nothing is written."""
    planning.require_archive(queue)
    with database.transaction("plan what goes into the lake", read_only=True) as connection:
        cutoffs = Cutoffs.of(connection, request)
        plan = _unfinished(connection, queue)
        left = 0 if plan is None else planning.reserved(connection, plan).rows
        rows = planning.available(connection, queue, cutoffs)
    if plan is not None and plan.state == RESERVED:
        # What is reserved is in the archive still.
        rows = replace(rows, rows=max(0, rows.rows - left))
    return RowsToArchive(queue, lake.location, plan, left, rows, cutoffs)


def _unfinished(connection: "Connection", queue: Queue) -> LakePlan | None:
    if not decisions.catalog_contents(connection).lakes:
        return None
    plan = planning.find(connection, queue)
    return plan if plan is not None and plan.unfinished else None


@dataclass(frozen=True)
class Sizes:
    """Rows at a time."""

    plan: int = planning.PLAN_ROWS
    part: int = planning.PART_ROWS
    batch: int = delete.BATCH


def archive(
    database: Database,
    wanted: RowsToArchive,
    lake: Lake,
    tasks: Tasks,
    *,
    on_progress: PhaseProgress = no_progress,
    sizes: Sizes = Sizes(),
    connections: int | None = None,
    cores: int = 1,
) -> list[ArchiveResult]:
    """Finish the unfinished plan, then take what the cut-offs allow.

    At most `connections` to the database are open at a time, OWN_CONNECTIONS among them. `cores`:
    how many tasks run at a time. RefusedError where another run is working on the queue.
    """
    at_once = None if connections is None else max(1, connections - OWN_CONNECTIONS)
    how = _How(tasks, on_progress, sizes, at_once, cores)
    with _in_charge(database, wanted.queue, lake) as run:
        return list(run.all(wanted.cutoffs, how))


@dataclass(frozen=True)
class _How:
    """A run is carried out."""

    tasks: Tasks
    on_progress: PhaseProgress
    sizes: Sizes
    at_once: int | None
    """Connections for tasks; None: as many as they like."""
    cores: int


def plan_cancel(database: Database, queue: Queue, lake: Lake, *, production: bool) -> Plan:
    """UsageError where the queue has no unfinished plan."""
    with database.transaction("read the plan of the archive", read_only=True) as connection:
        unfinished = _unfinished(connection, queue)
        if unfinished is None:
            raise UsageError(f"The queue {queue.name!r} has no unfinished plan.")
        left = planning.reserved(connection, unfinished).rows

    def run() -> Result:
        rows = cancel(database, queue, lake)
        line = f"{rows:,} rows were given back: they stay in the archive"
        return Result(Outcome.DONE, (line,), done=rows, data={"given_back": rows})

    lines = [
        f"{VERB} {plain(queue.label)} --cancel: the {numbered(left, 'row')} that plan "
        f"{unfinished.serial} reserved for {plain(unfinished.lake)} stay in the archive",
        "  refused if the lake has any of them",
    ]
    data = {
        "verb": VERB,
        "queue": queue.name,
        "schema": queue.schema,
        "lake": unfinished.lake,
        "cancelled": unfinished.serial,
        "rows": left,
    }
    subject = Subject.of(database, queue, VERB)
    return job_plan(subject, lines, run, data, queue=queue, rows=left, production=production)


def cancel(database: Database, queue: Queue, lake: Lake) -> int:
    """Give the rows of the unfinished plan back; how many. RefusedError where the lake has them."""
    with _in_charge(database, queue, lake) as run:
        return run.cancel()


@contextmanager
def _in_charge(database: Database, queue: Queue, lake: Lake) -> "Iterator[_Run]":
    """This process carries out the queue's plans: no other one does while the body runs."""
    with database.transaction("read the audit", read_only=True) as connection:
        audit.require(connection)
    with database.transaction("read the catalog") as connection:
        audit.prepare_lakes(connection)
        identity = sql.value(connection, str, "catalog.identity")
    name = leases.lease_name("run", queue)
    with leases.held(database, name, leases.already_running(queue)) as lease:
        with database.transaction("take over the plan of the archive") as connection:
            earlier = planning.locked(connection, queue)
            plan = planning.update(connection, earlier, run=lease.holder)
        if earlier.action_id:
            # Of a killed run; it may be another login's.
            with suppress(ConsoleError), database.transaction("end an action") as connection:
                detail = f"interrupted; plan {plan.serial} continues in a later action"
                audit.end(connection, earlier.action_id, "stopped", detail)
        yield _Run(database, queue, lake, lease, identity, plan)


class _Run:
    """Carries out the plans of a queue, from whatever state the last one is in."""

    def __init__(
        self,
        database: Database,
        queue: Queue,
        lake: Lake,
        lease: leases.RunLease,
        identity: str,
        plan: LakePlan,
    ) -> None:
        self._database = database
        self._queue = queue
        self._lake = lake
        self._lease = lease
        self._identity = identity
        self._plan = plan
        self._application = application_of(identity.rpartition("/")[2], queue)
        self._result = ArchiveResult(plan.serial)
        self._table = MessagesTable.open(lake)
        """As this run found it; None: to be created."""
        self._behind = False
        """Whether this run has committed since."""
        self._exported_at = 0.0
        """When the export of the plan began."""
        self._doubtful = False
        """Whether the table may have rows of the plan already."""
        self._complete = False
        """Whether all that may leave is reserved."""

    def all(self, cutoffs: Cutoffs, how: _How) -> Iterator[ArchiveResult]:
        doubtful = self._plan.unfinished
        if doubtful:
            yield self._carry_out(self._begin_again(), how, doubtful=True)
        while not self._complete and (action_id := self._reserve(cutoffs, how, doubtful=doubtful)):
            yield self._carry_out(action_id, how, doubtful=self._doubtful)
            doubtful = False

    def _require_not_behind(self, table: MessagesTable, last: int) -> None:
        """DamagedError where the table lacks a plan whose rows are no longer in the database."""
        plan = self._plan
        if table.id == plan.table_id and last < plan.committed:
            raise DamagedError(
                f"The lake {self._lake.location} is older than this database: it lacks plan "
                f"{plan.committed} of {self._queue.name!r}.",
                why=f"Its last one is {last or 'none'}: it was restored to an earlier moment. The "
                "rows of later plans were deleted here once it had them.",
                next_step="Nothing was changed. Put the newer lake back; or leave this one as it "
                "is, cancel an unfinished plan (--cancel), and go on in another one: --lake PATH",
            )

    def cancel(self) -> int:
        plan = self._plan
        if not plan.unfinished:
            raise UsageError(f"The queue {self._queue.name!r} has no unfinished plan.")
        table = self._table
        if table is not None and table.id == plan.table_id and plan.database == self._identity:
            comparison = compare.compare(self._database, self._queue, self._lake, table, plan)
            if comparison.held:
                raise RefusedError(
                    f"Plan {plan.serial} cannot be cancelled: the lake {self._lake.location} has "
                    f"{numbered(comparison.held, 'row')} of it.",
                    why="Given back, they would be there twice.",
                    next_step="Finish it: dbq-console pipeline archive "
                    f"{shlex.quote(self._queue.name)}",
                )
        subject = self._subject(f"plan {plan.serial} cancelled", 0)
        with self._database.transaction("cancel the plan of the archive") as connection:
            action_id = audit.begin(connection, subject)
            planning.locked(connection, self._queue)
            rows = planning.release_all(connection, plan)
            # The next serial is no plan's of the table: so the next one is compared with it.
            changes = {"serial": plan.serial + 1, "state": NONE, "action_id": 0}
            planning.update(connection, plan, **changes)
            audit.end(connection, action_id, "done", subject.detail)
        return rows

    # -- reserve

    def _subject(self, detail: str, planned: int) -> Subject:
        subject = Subject.of(self._database, self._queue, VERB, detail)
        return replace(subject, planned=planned)

    def _reserve(self, cutoffs: Cutoffs, how: _How, *, doubtful: bool) -> int:
        """Reserve what may leave, with its audit, in one transaction; the action, 0: nothing.

        `doubtful`: whether the table may have rows that are in the archive, too.
        """
        table = self._table = self._current()
        last = table.last_serial(self._application)
        self._require_not_behind(table, last)
        serial = max(last, self._plan.serial) + 1
        detail = f"plan {serial} into {self._lake.location}"
        with self._database.transaction("reserve rows for the lake") as connection:
            planning.locked(connection, self._queue)
            planning.require_charge(connection, self._plan)
            # Of a plan of which this row knows nothing: it was changed, or restored.
            forgotten = planning.release_all(connection, self._plan)
            rows = planning.reserve(connection, self._queue, self._plan, cutoffs, how.sizes.plan)
            if not rows.rows:
                return 0
            subject = replace(self._subject(detail, rows.rows), cutoff=cutoffs.cutoff)
            action_id = audit.begin(connection, subject)
            plan = planning.update(
                connection,
                self._plan,
                serial=serial,
                state=RESERVED,
                lake=self._lake.location,
                table_id=table.id,
                committed=last,
                database=self._identity,
                label=self._database.label,
                made_at=sql.value(connection, datetime, "pipeline.server_time"),
                action_id=action_id,
            )
        self._complete = rows.rows < how.sizes.plan and not doubtful
        self._doubtful = doubtful or bool(forgotten) or last != self._plan.serial
        self._plan = plan
        return action_id

    def _current(self) -> MessagesTable:
        """The table as it is now."""
        table = self._table
        if table is None or (self._behind and not table.refresh()):
            table = MessagesTable.open(self._lake) or MessagesTable.create(self._lake)
        self._behind = False
        return table

    def _begin_again(self) -> int:
        """The action that carries on with the unfinished plan. DamagedError where that is of
        another database, or of another lake."""
        self._require_same()
        detail = f"plan {self._plan.serial} into {self._lake.location}, continued"
        with self._database.transaction("begin an action") as connection:
            rows = planning.reserved(connection, self._plan).rows
            action_id = audit.begin(connection, self._subject(detail, rows))
            plan = planning.update(connection, self._plan, action_id=action_id)
        self._plan = plan
        return action_id

    def _require_same(self) -> None:
        plan, what = self._plan, f"Plan {self._plan.serial} of {self._queue.name!r}"
        back = (
            f"give its rows back: dbq-console pipeline archive {shlex.quote(self._queue.name)} "
            f"--cancel --lake {shlex.quote(self._lake.location)}"
        )
        if plan.database != self._identity:
            raise DamagedError(
                f"{what} was made in another database.",
                why=f"It was made in {plan.database}; this is {self._identity}: a copy, or the "
                "database after an upgrade of its server.",
                next_step="Nothing was changed. If this is a copy for trials, or was upgraded, "
                f"{back}",
            )
        table = self._table
        if table is None or table.id != plan.table_id:
            raise DamagedError(
                f"{what} is for another lake.",
                why=f"It was begun for {plan.lake}, whose table is {plan.table_id}; "
                f"{self._lake.location} has {'none' if table is None else table.id}.",
                next_step="Nothing was changed. Name that lake with --lake, and it is finished "
                f"there; or, where that one is lost, {back}",
            )
        self._require_not_behind(table, table.last_serial(self._application))

    # -- a plan

    def _carry_out(self, action_id: int, how: _How, *, doubtful: bool) -> ArchiveResult:
        self._result = ArchiveResult(self._plan.serial)
        with self._ended(action_id):
            if doubtful:
                with self._phase("compare"):
                    self._compare()
            if self._plan.state == RESERVED:
                entries = self._export(how)
                self._verify(entries, how)
                self._commit(entries)
            self._delete(action_id, how)
        return self._result

    @contextmanager
    def _ended(self, action_id: int) -> Iterator[None]:
        """End the action as the body ends."""
        outcome, detail = "failed", f"plan {self._plan.serial} into {self._lake.location}"
        try:
            yield
            outcome = "done"
        except ConsoleError as error:
            detail = error.what
            raise
        except KeyboardInterrupt:
            outcome = "stopped"
            raise
        finally:
            with suppress(ConsoleError), self._database.transaction("end an action") as connection:
                audit.end(connection, action_id, outcome, detail)

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self._result.seconds[name] = time.monotonic() - began

    def _set(self, **changes: object) -> None:
        with self._database.transaction("note how far the plan is") as connection:
            plan = planning.update(connection, self._plan, **changes)
        self._plan = plan

    @property
    def _opened(self) -> MessagesTable:
        if self._table is None:
            raise ValueError("a plan has a table")
        return self._table

    def _compare(self) -> None:
        """Go on by what the table has of the reserved rows: what it has is only deleted."""
        plan, table = self._plan, self._opened
        comparison = compare.compare(self._database, self._queue, self._lake, table, plan)
        self._result.rows["compare"] = comparison.held + len(comparison.absent)
        if comparison.held or plan.state == COMMITTED:
            self._result.in_lake_before = comparison.held
            # What the table lacks, or has lost since, goes with the next plan.
            committed = table.last_serial(self._application)
            self._release(comparison.absent, state=COMMITTED, committed=committed)
        else:
            self._set(serial=max(plan.serial, table.last_serial(self._application) + 1))
            self._result.plan = self._plan.serial

    def _release(self, keys: Sequence[int], **changes: object) -> None:
        with self._database.transaction("give rows back") as connection:
            for at in range(0, len(keys), delete.BATCH):
                few = [str(key) for key in keys[at : at + delete.BATCH]]
                planning.release(connection, self._plan, few)
            plan = planning.update(connection, self._plan, **changes)
        self._plan = plan

    # -- export, verify, commit

    def _parts(self, rows: int) -> list[Part]:
        with self._database.transaction("read the plan of the archive", read_only=True) as it:
            return planning.parts(it, self._plan, rows)

    def _export(self, how: _How) -> list[dict[str, Any]]:
        """The entries of the files: all that is reserved and still in the archive is in them."""
        with self._database.transaction("read the archive", read_only=True) as connection:
            others = planning.others(connection, self._queue)
            count = planning.reserved(connection, self._plan).rows
        # Two tasks a core, so that the last one does not keep all others waiting.
        enough = max(planning.LEAST_PART_ROWS, count // (2 * how.cores))
        parts = self._parts(how.sizes.part if how.cores == 1 else min(how.sizes.part, enough))
        url = url_for_tasks(self._database)
        product = self._database.product
        items = [
            export.item(product, self._queue, url, self._lake, self._plan, part, others)
            for part in parts
        ]
        self._exported_at = time.time()
        with self._phase("export"):
            on_progress = partial(how.on_progress, "export")
            done = how.tasks.run(export.export, items, on_progress, at_once=how.at_once)
        self._result.rows["export"] = sum(one["rows"] for one in done)
        self._give_up_missing(parts, done)
        return [entry for one in done for entry in one["files"]]

    def _give_up_missing(self, parts: Sequence[Part], done: Sequence[dict[str, Any]]) -> None:
        """Rows that others deleted between the reservation and the export are in no file."""
        short = [of for of, one in zip(parts, done, strict=True) if one["rows"] != of.rows]
        if not short:
            return
        written: set[int] = set()
        for part, one in zip(parts, done, strict=True):
            if part in short:
                for entry in one["files"]:
                    written |= files.keys(self._lake, entry["path"])
        missing: list[int] = []
        with self._database.transaction("read the plan of the archive", read_only=True) as it:
            for part in short:
                keys = planning.keys(it, self._plan, part)
                missing += [key for key in keys if key not in written]
        self._release(missing)

    def _verify(self, entries: Sequence[dict[str, Any]], how: _How) -> None:
        items = [
            {"lake": self._lake.location, "files": list(entries[at : at + _FILES_A_TASK])}
            for at in range(0, len(entries), _FILES_A_TASK)
        ]
        with self._phase("verify"):
            results = how.tasks.run(files.verify, items, partial(how.on_progress, "verify"))
        self._result.rows["verify"] = sum(result["rows"] for result in results)
        if wrong := [why for result in results for why in result["wrong"]]:
            raise DamagedError(
                f"{len(wrong)} of {len(entries)} files are not in the lake as they were written.",
                why=str(wrong[0]),
                next_step="Nothing was deleted. Check the lake's disk, then run it again: it "
                "exports these rows again.",
            )

    def _commit(self, entries: Sequence[dict[str, Any]]) -> None:
        self._lease.require()
        if time.time() - self._exported_at > delta.LEFTOVER_SECONDS / 2:
            raise RefusedError(
                f"The files of plan {self._plan.serial} are too old to be committed.",
                why="This machine stood still. pipeline compact removes old files that the table "
                "does not name.",
                next_step="Nothing was deleted. Run it again: it exports these rows again.",
            )
        result = self._result
        result.exported = sum(entry["rows"] for entry in entries)
        result.files = len(entries)
        result.bytes = sum(entry["bytes"] for entry in entries)
        result.size = sum(entry["size"] for entry in entries)
        if entries:
            table = self._opened
            if not table.is_there():
                raise DamagedError(
                    f"The lake {self._lake.location} was replaced while it was written.",
                    next_step="Nothing was deleted. Run it again.",
                )
            by = {"connection": self._plan.label}
            if not table.commit(self._application, self._plan.serial, entries, by):
                raise RefusedError(
                    f"Another run has put plan {self._plan.serial} into the lake.",
                    why="A copy of this database, or of this run, writes into the same lake.",
                    next_step="Nothing was deleted. Run it again: it compares the rows one by one.",
                )
            # From now on no compaction takes them for what a killed run has left.
            if gone := [one["path"] for one in entries if not self._lake.exists(one["path"])]:
                raise DamagedError(
                    f"{len(gone)} of {numbered(len(entries), 'file')} went before their commit.",
                    why=f"{gone[0]}: a compaction on a machine whose clock is days ahead does so.",
                    next_step="Nothing was deleted. Set the clocks, take the files out of the "
                    "table (FSCK REPAIR TABLE, or repair() in Python) and run it again: it exports "
                    "these rows again.",
                )
            self._behind = True
            self._set(state=COMMITTED, committed=self._plan.serial)
        else:
            self._set(state=NONE)

    # -- delete

    def _delete(self, action_id: int, how: _How) -> None:
        parts = self._parts(how.sizes.batch)
        result = self._result
        if sum(part.rows for part in parts) != result.exported + result.in_lake_before:
            raise planning.rows_changed(self._plan)
        with self._phase("delete"):
            deleted = delete.delete(
                self._database,
                self._queue,
                self._plan,
                action_id,
                parts,
                lambda done, rows: how.on_progress(
                    "delete", done=done, of=len(parts), rows=rows, size=0
                ),
                sessions=min(delete.SESSIONS, how.at_once or delete.SESSIONS),
            )
        self._result.deleted = self._result.rows["delete"] = deleted
        # A row that was not deleted may be there still, if a trigger keeps it: as the next serial
        # is no plan's of the table, the next plan is compared with it.
        kept = deleted < sum(part.rows for part in parts)
        self._complete |= kept and not deleted
        self._set(state=NONE, action_id=0, serial=self._plan.serial + kept)


_FILES_A_TASK = 4
