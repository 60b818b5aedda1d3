"""A whole archive run: it finishes the plans it finds, then carries out a new one."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from console import audit
from console.audit import EntryFilter, Subject
from console.catalog import Queue
from console.engines import Database, Session
from console.errors import ConsoleError
from console.formats import duration, numbered, plain
from console.pipeline import PhaseProgress, locks, no_progress
from console.pipeline.archive import delete, export, files
from console.pipeline.archive import plan as planning
from console.pipeline.archive.export import url_for_tasks
from console.pipeline.archive.plan import ArchivePlan, ArchiveRequest, Range
from console.pipeline.lake import DamagedError, Lake
from console.pipeline.spark import Tasks

VERB = "pipeline archive"
OWN_CONNECTIONS = 2
"""To the database: the run's lock, and the session that deletes."""
PHASES = ("export", "verify", "delete", "withdraw")
_RUNS_MOST = 1_000
"""Of a queue's latest runs it is known under which name each had the database."""

Manifests = dict[int, Mapping[str, Any]]
"""By the number of the range."""


@dataclass(frozen=True)
class ArchivePreview:
    """What a run would do."""

    queue: Queue
    lake: str
    unfinished: ArchivePlan | None
    plan: ArchivePlan

    @property
    def rows(self) -> int:
        """At most so many rows leave the database."""
        return self.plan.rows + (0 if self.unfinished is None else self.unfinished.rows)

    def lines(self) -> list[str]:
        plan, first = self.plan, self.unfinished
        lines = [
            f"{VERB} {plain(self.queue.label)}: {numbered(plan.rows, 'row')} "
            f"into {plain(self.lake)}, then deleted"
        ]
        if plan.rows:
            lines.append(
                f"  {plan.oldest} to {plan.newest} UTC, {numbered(len(plan.ranges), 'range')}"
            )
        lines.append(f"  popped rows up to {plan.cutoff} UTC, others up to {plan.before} UTC")
        if plan.done_before:
            lines.append(f"  done rows of the queue up to {plan.done_before} UTC")
        if first is not None:
            lines.append(f"  the plan {first.id} is finished first: {numbered(first.rows, 'row')}")
        lines.append("  restore brings none of it back; pipeline replay does")
        return lines

    def as_json(self) -> dict[str, Any]:
        """The stable object of `--json`."""
        plan = self.plan
        return {
            "verb": VERB,
            "queue": self.queue.name,
            "schema": self.queue.schema,
            "lake": self.lake,
            "rows": plan.rows,
            "ranges": len(plan.ranges),
            "oldest": plan.oldest or None,
            "newest": plan.newest or None,
            "cutoff": plan.cutoff,
            "before": plan.before,
            "done_before": plan.done_before or None,
            "unfinished": None if self.unfinished is None else self.unfinished.id,
        }


@dataclass
class ArchiveResult:
    """Of one plan."""

    plan: str
    exported: int = 0
    deleted: int = 0
    withdrawn: int = 0
    files: int = 0
    bytes: int = 0
    """Of payload, in the lake."""
    size: int = 0
    """Of the files."""
    exported_again: int = 0
    """Ranges whose manifest was damaged, before anything was deleted."""
    seconds: dict[str, float] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    """By phase, what this run moved; not what earlier runs had done."""

    @property
    def rows_per_second(self) -> dict[str, float]:
        return {
            phase: round(self.rows.get(phase, 0) / seconds, 1) if seconds else 0.0
            for phase, seconds in self.seconds.items()
        }

    def as_json(self) -> dict[str, Any]:
        """As `done.json` and `--json` have it."""
        seconds = {phase: round(value, 3) for phase, value in self.seconds.items()}
        return {**vars(self), "seconds": seconds, "rows_per_second": self.rows_per_second}

    def lines(self) -> list[str]:
        speed = self.rows_per_second
        phases = ", ".join(
            f"{phase} {duration(self.seconds[phase])} ({speed[phase]:,.0f} rows/s)"
            for phase in PHASES
            if phase in self.seconds
        )
        lines = [
            f"plan {self.plan}: exported {self.exported:,}, deleted {self.deleted:,}, "
            f"withdrawn {self.withdrawn:,}; {self.files:,} files, {self.bytes:,} bytes of payload",
            f"  {phases}",
        ]
        if self.exported_again:
            lines.append(
                f"  {self.exported_again} ranges with a damaged manifest were exported again"
            )
        return lines


def preview(
    database: Database, queue: Queue, lake: Lake, request: ArchiveRequest, **options: int
) -> ArchivePreview:
    """What a run would do. Nothing is written. `options`: those of `planning.make`."""
    planning.require_archive(queue, request)
    with database.transaction("plan what goes into the lake", read_only=True) as connection:
        plan = planning.make(connection, queue, database.label, request, **options)
    return ArchivePreview(queue, lake.location, _unfinished(database, queue, lake), plan)


def _unfinished(database: Database, queue: Queue, lake: Lake) -> ArchivePlan | None:
    """The oldest unfinished plan of the queue.

    Also that of a run with another name for the database (another URL or profile): its rows may be
    in the lake already. The audit knows these names, and by its cut-off that a plan is the queue's.
    """
    if plan := planning.unfinished(lake, database.label, queue):
        return plan
    with database.transaction("read the audit", read_only=True) as connection:
        runs = EntryFilter(queue.schema, queue.name, VERB)
        earlier = {
            (run.connection, run.cutoff) for run in audit.entries(connection, runs, _RUNS_MOST)
        }
    for name in sorted({name for name, _ in earlier} - {database.label}):
        plan = planning.unfinished(lake, name, queue)
        if plan is not None and (name, plan.cutoff_time) in earlier:
            return plan
    return None


def archive(
    database: Database,
    offered: ArchivePreview,
    lake: Lake,
    tasks: Tasks,
    *,
    on_progress: PhaseProgress = no_progress,
    batch: int = delete.BATCH,
    connections: int | None = None,
) -> list[ArchiveResult]:
    """Finish the unfinished plans, then carry out the one of the preview.

    At most `connections` to the database are open at a time, OWN_CONNECTIONS among them.
    RefusedError where another run is working on the queue and the lake.
    """
    queue = offered.queue
    with database.transaction("read the audit", read_only=True) as connection:
        audit.require(connection)
    done: list[ArchiveResult] = []
    plan = offered.plan
    at_once = None if connections is None else connections - OWN_CONNECTIONS
    with locks.run_lock(database, lake.id(), queue) as lock:

        def carry_out(plan: ArchivePlan, *, again: bool) -> None:
            run = _PlanRun(database, queue, lake, tasks, plan, lock, on_progress, batch, at_once)
            done.append(run.carry_out(again=again))

        while (unfinished := _unfinished(database, queue, lake)) is not None:
            carry_out(unfinished, again=True)
        if done:
            with database.transaction("plan what else goes", read_only=True) as connection:
                plan = planning.with_ranges(connection, queue, plan)
        if plan.ranges:
            planning.write(lake, plan)
            carry_out(plan, again=False)
    return done


@dataclass
class _PlanRun:
    """Carries out one plan, from whatever state it is in."""

    _database: Database
    _queue: Queue
    _lake: Lake
    _tasks: Tasks
    _plan: ArchivePlan
    _lock: locks.RunLock
    _on_progress: PhaseProgress
    _batch: int
    _at_once: int | None

    def __post_init__(self) -> None:
        self._result = ArchiveResult(self._plan.id)

    def carry_out(self, *, again: bool) -> ArchiveResult:
        with self._database.session("archive into the lake") as session:
            with self._lock.exclusive():
                # Even where no earlier run is known: from here on none can be working.
                self._end_earlier_actions(session)
                action_id = self._begin(session)
            # Holds off a successor, even if the connection with the run's lock is lost.
            working = locks.hold(
                session, self._lock.work, "shared", locks.already_running(self._queue)
            )
            with working, self._ended(session, action_id):
                manifests = self._export(action_id, again=again)
                self._verify(manifests)
                intents = self._intents(session)
                self._delete(session, manifests, intents, action_id)
                self._withdraw(manifests, intents, action_id)
        return self._result

    def _begin(self, session: Session) -> int:
        plan = self._plan
        subject = replace(
            Subject.of(self._database, self._queue, VERB, self._detail),
            cutoff=plan.cutoff_time,
            planned=plan.rows,
        )
        with session.transaction("begin an action") as connection:
            action_id = audit.begin(connection, subject)
        self._lake.write_json(f"{plan.manifests}/runs/{action_id}.json", {"action": action_id})
        return action_id

    @property
    def _detail(self) -> str:
        return f"plan {self._plan.id} into {self._lake.location}"

    def _end_earlier_actions(self, session: Session) -> None:
        """Those of interrupted runs: late tasks of theirs then see that it has ended."""
        for name in self._lake.names(f"{self._plan.manifests}/runs"):
            number = name.removesuffix(".json")
            if number.isdecimal():
                with session.transaction("end an earlier action") as connection:
                    detail = f"interrupted; plan {self._plan.id} continues in a later action"
                    audit.end(connection, int(number), "stopped", detail)

    @contextmanager
    def _ended(self, session: Session, action_id: int) -> Iterator[None]:
        """End the action as the body ends."""
        outcome, detail = "failed", self._detail
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
            with suppress(ConsoleError), session.transaction("end an action") as connection:
                audit.end(connection, action_id, outcome, detail)

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self._result.seconds[name] = time.monotonic() - began

    # -- export

    def _export(self, action_id: int, *, again: bool) -> Manifests:
        """The manifest of each range; all of them are in the lake then."""
        plan = self._plan
        manifests = self._earlier_manifests() if again else {}
        items = export.items(
            self._database.product,
            self._queue,
            url_for_tasks(self._database),
            self._lake,
            plan,
            [part for part in plan.ranges if part.number not in manifests],
            work=self._lock.work,
            action_id=action_id,
            clean=again,
        )
        with self._phase("export"):
            on_progress = partial(self._on_progress, "export")
            new = self._tasks.run(export.export, items, on_progress, at_once=self._at_once)
        self._result.rows["export"] = sum(manifest["rows"] for manifest in new)
        return manifests | {manifest["range"]: manifest for manifest in new}

    def _earlier_manifests(self) -> Manifests:
        """Of earlier runs. Until rows are deleted, a damaged one counts as missing."""
        found: Manifests = {}
        verified = self._lake.exists(self._verified_path)
        for part in self._plan.ranges:
            path = self._plan.range_path(part.number)
            try:
                found[part.number] = self._manifest(path, part)
            except FileNotFoundError:
                if verified:
                    raise _unusable(self._lake.path(path), "It is missing.") from None
            except DamagedError:
                if verified:
                    raise
                self._result.exported_again += 1
        return found

    def _manifest(self, path: str, part: Range) -> Mapping[str, Any]:
        manifest = self._lake.read_json(path)
        if not export.is_manifest(manifest, self._plan, part):
            raise _unusable(self._lake.path(path), "It is not the manifest of this range.")
        return manifest

    # -- verify

    @property
    def _verified_path(self) -> str:
        return f"{self._plan.manifests}/verified.json"

    def _verify(self, manifests: Manifests) -> None:
        """Once per plan: from then on rows may be deleted and files rewritten."""
        if self._lake.exists(self._verified_path):
            rows = self._lake.read_json(self._verified_path).get("rows")
            if not isinstance(rows, int):
                path = self._lake.path(self._verified_path)
                raise _unusable(path, "It does not say how many rows were verified.")
            self._result.exported = rows
            return
        with self._phase("verify"):
            items = files.items(self._lake, list(manifests.values()))
            results = self._tasks.run(files.verify, items, partial(self._on_progress, "verify"))
        self._result.rows["verify"] = sum(result["rows"] for result in results)
        if wrong := [result for result in results if result["wrong"]]:
            for result in wrong:
                # Its rows are all still in the database: the next run exports them again.
                self._lake.remove(self._plan.range_path(result["range"]))
            raise DamagedError(
                f"{len(wrong)} of {len(results)} ranges are not in the lake as they were written.",
                why=str(wrong[0]["wrong"][0]),
                next_step="Nothing was deleted. Check the lake's disk, then run it again: it "
                "exports these ranges again.",
            )
        rows = sum(int(manifest["rows"]) for manifest in manifests.values())
        self._lake.write_json(self._verified_path, {"plan": self._plan.id, "rows": rows})
        self._result.exported = rows

    # -- delete, withdraw

    def _intents(self, session: Session) -> delete.Intents:
        intents = delete.Intents(self._lake, self._plan)
        for action_id in intents.actions:
            with session.transaction("read an action") as connection:
                action = locks.action(connection, action_id)
            if action is None:
                raise DamagedError(
                    f"Action {action_id} is not in the database's audit.",
                    why="Only that says which rows an earlier run deleted.",
                    next_step="Restore its row in dbq.action, or use the database it was in.",
                )
            intents.set_committed(action_id, action.done)
        return intents

    def _delete(
        self, session: Session, manifests: Manifests, intents: delete.Intents, action_id: int
    ) -> None:
        deleter = delete.Deleter(
            session, self._queue, self._plan, intents, action_id, batch_rows=self._batch
        )
        parts = self._plan.ranges
        on_progress = partial(self._on_progress, "delete", of=len(parts), size=0)
        with self._phase("delete"):
            for number, part in enumerate(parts):
                deleted = intents.deleted(part.number)
                keys = delete.exported(self._lake, manifests[part.number], deleted)
                for _ in deleter.range(part, keys):
                    on_progress(done=number, rows=deleter.done)
        intents.set_committed(action_id, deleter.done)
        self._result.rows["delete"] = deleter.done
        on_progress(done=len(parts), rows=deleter.done)

    def _withdraw(self, manifests: Manifests, intents: delete.Intents, action_id: int) -> None:
        result, paths = self._result, set()
        with self._phase("withdraw"):
            for part in self._plan.ranges:
                deleted = intents.deleted(part.number)
                manifest = delete.withdraw(
                    self._lake,
                    self._plan,
                    part,
                    manifests[part.number],
                    deleted,
                    self._lock.require,
                )
                result.deleted += len(deleted)
                result.bytes += int(manifest["bytes"])
                result.size += int(manifest["size"])
                paths |= {file["path"] for file in manifest["files"]}
        result.files = len(paths)
        result.withdrawn = result.exported - result.deleted
        result.rows["withdraw"] = result.withdrawn
        self._remove_others(paths)
        content = {**result.as_json(), "action": action_id, "queue": self._queue.name}
        self._lake.write_json(self._plan.done_path, {**content, "paths": sorted(paths)})
        intents.clear()

    def _remove_others(self, paths: set[str]) -> None:
        """The plan's files that no manifest names: withdrawn as a whole, or of failed attempts."""
        prefixes = (f"{self._plan.id}-", f"_tmp-{self._plan.id}-")
        for path in self._lake.files(self._plan.folder):
            if path not in paths and path.rsplit("/", 1)[-1].startswith(prefixes):
                self._lake.remove(path)


def _unusable(path: str, why: str) -> DamagedError:
    return DamagedError(
        f"The manifest {path} cannot be used.",
        why=why,
        next_step="Rows of the range may be deleted already: restore the file.",
    )
