"""The whole of a run: it finishes what it finds, then takes what may go now."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from console import audit
from console.audit import Subject
from console.catalog import Queue
from console.engines import Database, Session
from console.errors import ConsoleError
from console.formats import duration, numbered, plain
from console.pipeline import PhaseProgress, locks, no_progress
from console.pipeline.archive import contents, delete, export
from console.pipeline.archive import files as verify
from console.pipeline.archive import plan as planning
from console.pipeline.archive.export import url_for_tasks
from console.pipeline.archive.plan import ArchivePlan, ArchiveRequest, Range
from console.pipeline.lake import DamagedError, Lake
from console.pipeline.spark import Tasks

VERB = "pipeline archive"
OWN_CONNECTIONS = 2
"""To the database: the run's lock, and the session that deletes."""
PHASES = ("export", "verify", "delete", "withdraw")


@dataclass(frozen=True)
class ArchivePreview:
    """What a run would do, before it does anything."""

    queue: Queue
    lake: str
    unfinished: ArchivePlan | None
    made: ArchivePlan

    @property
    def rows(self) -> int:
        """So many rows, at most, leave the database."""
        return self.made.rows + (0 if self.unfinished is None else self.unfinished.rows)

    def lines(self) -> list[str]:
        made, found = self.made, self.unfinished
        name = plain(self.queue.label)
        lines = [
            f"{VERB} {name}: {numbered(made.rows, 'row')} into {plain(self.lake)}, then deleted"
        ]
        if made.rows:
            lines.append(
                f"  {made.oldest} to {made.newest} UTC, {numbered(len(made.ranges), 'range')}"
            )
        lines.append(f"  popped rows up to {made.cutoff} UTC, others up to {made.before} UTC")
        if made.done_before:
            lines.append(f"  done rows of the queue up to {made.done_before} UTC")
        if found is not None:
            lines.append(f"  first the plan {found.id} is finished: {numbered(found.rows, 'row')}")
        lines.append("  restore brings none of it back; pipeline replay does")
        return lines

    def as_json(self) -> dict[str, Any]:
        """The stable object of `--json`."""
        made = self.made
        return {
            "verb": VERB,
            "queue": self.queue.name,
            "schema": self.queue.schema,
            "lake": self.lake,
            "rows": made.rows,
            "ranges": len(made.ranges),
            "oldest": made.oldest or None,
            "newest": made.newest or None,
            "cutoff": made.cutoff,
            "before": made.before,
            "done_before": made.done_before or None,
            "unfinished": None if self.unfinished is None else self.unfinished.id,
        }


@dataclass
class ArchiveResult:
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
    """That each phase of this run moved: not those that an earlier run had done."""

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
    database: Database, queue: Queue, lake: Lake, wanted: ArchiveRequest, **how: int
) -> ArchivePreview:
    """What a run would do. Nothing is written."""
    planning.require_archive(queue, wanted)
    with database.transaction("plan what goes into the lake", read_only=True) as connection:
        made = planning.make(connection, queue, database.label, wanted, **how)
    found = planning.unfinished(lake, database.label, queue)
    return ArchivePreview(queue, lake.location, found, made)


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
    """Do it: a plan that is not finished, then the one that was offered.

    No more than so many `connections` to the database are open at a time, its own with them.

    RefusedError where another run of the queue and the lake is at work.
    """
    queue = offered.queue
    with database.transaction("read the audit", read_only=True) as connection:
        audit.require(connection)
    done: list[ArchiveResult] = []
    made = offered.made
    at_once = None if connections is None else connections - OWN_CONNECTIONS
    with locks.run_lock(database, lake.id(), queue) as run:

        def carry_out(plan: ArchivePlan, *, again: bool) -> None:
            carrying = _Carrying(
                database, queue, lake, tasks, plan, run, on_progress, batch, at_once
            )
            done.append(carrying.out(again=again))

        while (found := planning.unfinished(lake, database.label, queue)) is not None:
            carry_out(found, again=True)
        if done:
            with database.transaction("plan what else goes", read_only=True) as connection:
                made = planning.made_again(connection, queue, made)
        if made.ranges:
            planning.write(lake, made)
            carry_out(made, again=False)
    return done


@dataclass
class _Carrying:
    """One plan, from wherever it is to its end."""

    _database: Database
    _queue: Queue
    _lake: Lake
    _tasks: Tasks
    _plan: ArchivePlan
    _run: locks.RunLock
    _on_progress: PhaseProgress
    _batch: int
    _at_once: int | None

    def __post_init__(self) -> None:
        self._done = ArchiveResult(self._plan.id)

    def out(self, *, again: bool) -> ArchiveResult:
        with self._database.session("archive into the lake") as session:
            with self._run.alone():
                # Also without an earlier run: so none can be at work from here on.
                self._end_earlier(session)
                action_id = self._begin(session)
            # No successor begins meanwhile, whatever becomes of the run's own lock.
            working = locks.hold(
                session, self._run.work, "shared", locks.already_running(self._queue)
            )
            with working, self._ended(session, action_id):
                manifests = self._export(action_id, again=again)
                self._verify(manifests)
                intents = self._intents(session)
                self._delete(session, manifests, intents, action_id)
                self._withdraw(manifests, intents, action_id)
        return self._done

    def _begin(self, session: Session) -> int:
        plan = self._plan
        detail = f"plan {plan.id} into {self._lake.location}"
        subject = replace(
            Subject.of(self._database, self._queue, VERB, detail),
            cutoff=datetime.fromisoformat(plan.cutoff).replace(tzinfo=UTC),
            planned=plan.rows,
        )
        with session.transaction("begin an action") as connection:
            action_id = audit.begin(connection, subject)
        self._lake.write_json(f"{plan.manifests}/runs/{action_id}.json", {"action": action_id})
        return action_id

    def _end_earlier(self, session: Session) -> None:
        """Actions of runs that were cut off: what still works for them finds them ended."""
        for name in self._lake.names(f"{self._plan.manifests}/runs"):
            number = name.removesuffix(".json")
            if number.isdecimal():
                with session.transaction("end an earlier action") as connection:
                    detail = f"interrupted; plan {self._plan.id} continues in a later action"
                    audit.end(connection, int(number), "stopped", detail)

    @contextmanager
    def _ended(self, session: Session, action_id: int) -> Iterator[None]:
        """The action ends as the body does."""
        outcome, detail = "failed", ""
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
            detail = detail or f"plan {self._plan.id} into {self._lake.location}"
            with suppress(ConsoleError), session.transaction("end an action") as connection:
                audit.end(connection, action_id, outcome, detail)

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        begun = time.monotonic()
        try:
            yield
        finally:
            self._done.seconds[name] = time.monotonic() - begun

    # -- export

    def _export(self, action_id: int, *, again: bool) -> dict[int, Mapping[str, Any]]:
        """The manifest of each range, in the lake."""
        plan = self._plan
        found = self._manifests() if again else {}
        missing = [part for part in plan.ranges if part.number not in found]
        items = export.items(
            self._database.product,
            self._queue,
            url_for_tasks(self._database),
            self._lake,
            plan,
            missing,
            work=self._run.work,
            action_id=action_id,
            clean=again,
        )
        with self._phase("export"):
            told = self._tasks.run(export.export, items, self._of("export"), at_once=self._at_once)
        found |= {manifest["range"]: manifest for manifest in told}
        self._done.rows["export"] = sum(manifest["rows"] for manifest in told)
        return found

    def _of(self, phase: str) -> Any:
        def told(*, done: int, of: int, rows: int, size: int) -> None:
            self._on_progress(phase, done=done, of=of, rows=rows, size=size)

        return told

    def _manifests(self) -> dict[int, Mapping[str, Any]]:
        """Those that earlier runs left. While nothing is deleted, a damaged one is as none."""
        found: dict[int, Mapping[str, Any]] = {}
        verified = self._lake.exists(self._verified_path)
        for part in self._plan.ranges:
            path = self._plan.range_path(part.number)
            try:
                found[part.number] = self._manifest(path, part)
            except FileNotFoundError:
                if verified:
                    raise _lacking(self._lake.path(path), "It is missing.") from None
            except DamagedError:
                if verified:
                    raise
                self._done.exported_again += 1
        return found

    def _manifest(self, path: str, part: Range) -> Mapping[str, Any]:
        manifest = self._lake.read_json(path)
        if not _is_manifest(manifest, self._plan, part):
            raise _lacking(self._lake.path(path), "It is not the manifest of this range.")
        return manifest

    # -- verify

    @property
    def _verified_path(self) -> str:
        return f"{self._plan.manifests}/verified.json"

    def _verify(self, manifests: Mapping[int, Mapping[str, Any]]) -> None:
        """Once for all: from then on rows may be deleted, and files be rewritten."""
        if self._lake.exists(self._verified_path):
            counted = self._lake.read_json(self._verified_path).get("rows")
            if not isinstance(counted, int):
                path = self._lake.path(self._verified_path)
                raise _lacking(path, "It does not say how many rows were verified.")
            self._done.exported = counted
            return
        exported = sum(int(manifest["rows"]) for manifest in manifests.values())
        with self._phase("verify"):
            items = verify.items(self._lake, list(manifests.values()))
            results = self._tasks.run(verify.verify, items, self._of("verify"))
        self._done.rows["verify"] = sum(result["rows"] for result in results)
        if wrong := [result for result in results if result["wrong"]]:
            for result in wrong:
                # Everything is still in the database: the next run writes it again.
                self._lake.remove(self._plan.range_path(result["range"]))
            first = wrong[0]["wrong"][0]
            raise DamagedError(
                f"{len(wrong)} of {len(results)} ranges are not in the lake as they were written.",
                why=str(first),
                next_step="Nothing was deleted. Check the lake's disk, then run it again: it "
                "exports these ranges again.",
            )
        self._lake.write_json(self._verified_path, {"plan": self._plan.id, "rows": exported})
        self._done.exported = exported

    # -- delete, withdraw

    def _intents(self, session: Session) -> delete.Intents:
        intents = delete.Intents(self._lake, self._plan)
        for action_id in intents.actions:
            with session.transaction("read an action") as connection:
                found = locks.action(connection, action_id)
            if found is None:
                raise DamagedError(
                    f"Action {action_id} is not in the database's audit.",
                    why="Only that says which rows an earlier run deleted.",
                    next_step="Restore its row in dbq.action, or use the database it was in.",
                )
            intents.counted(action_id, found.done)
        return intents

    def _delete(
        self,
        session: Session,
        manifests: Mapping[int, Mapping[str, Any]],
        intents: delete.Intents,
        action_id: int,
    ) -> None:
        deleter = delete.Deleter(
            session,
            self._queue,
            self._plan,
            intents,
            action_id,
            batch=self._batch,
        )
        parts = self._plan.ranges
        with self._phase("delete"):
            for at, part in enumerate(parts):
                deleted = intents.deleted(part.number)
                keys = delete.exported(self._lake, manifests[part.number], deleted)
                for _ in deleter.range(part, keys):
                    self._on_progress("delete", done=at, of=len(parts), rows=deleter.done, size=0)
        intents.counted(action_id, deleter.done)
        self._done.rows["delete"] = deleter.done
        self._on_progress("delete", done=len(parts), of=len(parts), rows=deleter.done, size=0)

    def _withdraw(
        self, manifests: Mapping[int, Mapping[str, Any]], intents: delete.Intents, action_id: int
    ) -> None:
        done, paths = self._done, set()
        with self._phase("withdraw"):
            for part in self._plan.ranges:
                deleted = intents.deleted(part.number)
                manifest = delete.withdraw(
                    self._lake,
                    self._plan,
                    part,
                    manifests[part.number],
                    deleted,
                    self._run.require,
                )
                done.deleted += len(deleted)
                done.bytes += int(manifest["bytes"])
                done.size += int(manifest["size"])
                paths |= {file["path"] for file in manifest["files"]}
        done.files = len(paths)
        done.withdrawn = done.exported - done.deleted
        done.rows["withdraw"] = done.withdrawn
        self._remove_others(paths)
        told = {**done.as_json(), "action": action_id, "queue": self._queue.name}
        self._lake.write_json(self._plan.done_path, {**told, "paths": sorted(paths)})
        intents.clear()

    def _remove_others(self, paths: set[str]) -> None:
        """Files of the plan that no manifest names: emptied, or left by an attempt."""
        folder, marks = self._plan.folder, (f"{self._plan.id}-", f"_tmp-{self._plan.id}-")
        for path in self._lake.files(folder):
            if path not in paths and path.rsplit("/", 1)[-1].startswith(marks):
                self._lake.remove(path)


def _lacking(path: str, why: str) -> DamagedError:
    return DamagedError(
        f"The manifest {path} cannot be used.",
        why=why,
        next_step="Rows of the range may be deleted already: restore the file.",
    )


def _is_manifest(manifest: Mapping[str, Any], plan: ArchivePlan, part: Range) -> bool:
    try:
        files = [dict(file) for file in manifest["files"]]
        paths = [str(file["path"]) for file in files]
    except (KeyError, TypeError, ValueError):
        return False
    counts = (manifest.get("rows"), manifest.get("bytes"), manifest.get("size"))
    told = (manifest.get("plan"), manifest.get("range"), manifest.get("source"))
    return (
        told == (plan.id, part.number, part.source)
        and all(isinstance(count, int) for count in counts)
        and all(contents.is_told(file, verify.SCHEMA.names) for file in files)
        and all(path.startswith(plan.folder) for path in paths)
    )
