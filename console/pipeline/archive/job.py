"""A whole archive run: it finishes the plans it finds, then carries out a new one."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from console import audit, decisions, sql
from console.audit import EntryFilter, Subject
from console.catalog import Queue
from console.engines import Database, Session
from console.errors import ConsoleError
from console.formats import duration, numbered, plain
from console.pipeline import PhaseProgress, leases, no_progress
from console.pipeline.archive import delete, export, files
from console.pipeline.archive import plan as planning
from console.pipeline.archive.export import url_for_tasks
from console.pipeline.archive.plan import ArchivePlan, ArchiveRequest, Range
from console.pipeline.lake import TRASH, DamagedError, Lake
from console.pipeline.spark import Security, Tasks

VERB = "pipeline archive"
OWN_CONNECTIONS = 2
"""To the database: one that renews the run's lease, and the session that deletes."""
PHASES = ("export", "verify", "delete", "withdraw")
_RUNS_MOST = 1_000
"""Of a queue's latest runs it is known under which name each had the database."""

Manifests = dict[int, Mapping[str, Any]]
"""By the number of the range."""
Keys = dict[int, set[int]]
"""Of rows, by the number of their range."""


@dataclass(frozen=True)
class ArchivePreview:
    """What a run would do."""

    queue: Queue
    lake: str
    unfinished: ArchivePlan | None
    plan: ArchivePlan
    spark: Security | None = None

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
        if self.spark is not None:
            lines.append(f"  {self.spark.line}")
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
            "spark": None if self.spark is None else self.spark.as_json(),
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
    """Ranges whose manifest was damaged or missing, before anything was deleted."""
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
    """The oldest unfinished plan of the queue. DamagedError where it is of another database.

    Also that of a run with another name for the database (another URL or profile): its rows may be
    in the lake already. The audit knows these names, and by its cut-off that a plan is the queue's.
    """
    if plan := planning.unfinished(lake, database.label, queue):
        _require_database(database, lake, plan)
        return plan
    with database.transaction("read the audit", read_only=True) as connection:
        runs = EntryFilter(queue.schema, queue.name, VERB)
        earlier = {
            (run.connection, run.cutoff) for run in audit.entries(connection, runs, _RUNS_MOST)
        }
    for name in sorted({name for name, _ in earlier} - {database.label}):
        plan = planning.unfinished(lake, name, queue)
        if plan is not None and (name, plan.cutoff_time) in earlier:
            _require_database(database, lake, plan)
            return plan
    return None


def _require_database(database: Database, lake: Lake, plan: ArchivePlan) -> None:
    with database.transaction("read the catalog", read_only=True) as connection:
        known = decisions.catalog_contents(connection).identified
        here = sql.value(connection, str, "catalog.identity") if known else ""
    if plan.database not in {"", here}:
        raise _another_database(
            lake, plan, f"It was made in {plan.database}; this is {here or 'a catalog without id'}."
        )


def _another_database(lake: Lake, plan: ArchivePlan, why: str) -> DamagedError:
    return DamagedError(
        f"The unfinished plan {plan.id} in {lake.location} belongs to another database.",
        why=f"{why} So the address leads elsewhere now, or the database was restored to an earlier "
        "moment, or its audit was changed.",
        next_step="Nothing was changed. Connect to the database in which it was begun, and it is "
        "finished there; or give this one a lake of its own: --lake PATH",
    )


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
    with database.transaction("read the catalog") as connection:
        audit.prepare_identity(connection)
        identity = sql.value(connection, str, "catalog.identity")
    done: list[ArchiveResult] = []
    plan = offered.plan
    at_once = None if connections is None else connections - OWN_CONNECTIONS
    name = leases.lease_name("run", lake.id(), queue)
    with leases.held(database, name, leases.already_running(queue)) as lease:

        def carry_out(plan: ArchivePlan, *, again: bool) -> None:
            run = _PlanRun(database, queue, lake, tasks, plan, lease, on_progress, batch, at_once)
            done.append(run.carry_out(again=again))

        while (unfinished := _unfinished(database, queue, lake)) is not None:
            carry_out(unfinished, again=True)
        if done:
            with database.transaction("plan what else goes", read_only=True) as connection:
                plan = planning.with_ranges(connection, queue, plan)
        if plan.ranges:
            plan = replace(plan, database=identity)
            lease.require()
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
    _lease: leases.Lease
    _on_progress: PhaseProgress
    _batch: int
    _at_once: int | None

    def __post_init__(self) -> None:
        self._result = ArchiveResult(self._plan.id)

    def carry_out(self, *, again: bool) -> ArchiveResult:
        with self._database.session("archive into the lake") as session:
            earlier = self._earlier_actions(session) if again else []
            self._end_earlier_actions(session, earlier)
            deleting = any(action.done for action in self._actions(session))
            action_id = self._begin(session)
            with self._ended(session, action_id):
                manifests = self._export(action_id, again=again, deleting=deleting)
                self._verify(manifests, deleting=deleting)
                kept = self._delete(session, manifests, action_id)
                self._withdraw(manifests, kept, action_id)
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

    def _earlier_actions(self, session: Session) -> list[leases.Action]:
        """Those that carried out the plan so far, by this database's audit. DamagedError where
        that does not have those which the lake knows."""
        plan = self._plan
        actions = self._actions(session)
        names = self._lake.names(f"{plan.manifests}/runs")
        known = {int(number) for name in names if (number := name[: -len(".json")]).isdecimal()}
        known |= delete.Intents(self._lake, plan).actions
        if missing := known - {action.action_id for action in actions}:
            raise _another_database(
                self._lake, plan, f"Its action {min(missing)} is not in this database's audit."
            )
        # Temporary files of a killed run begin with _.
        begun = {name for name in self._lake.names(plan.manifests) if not name.startswith("_")}
        if not actions and begun > {"plan.json"}:
            raise _another_database(
                self._lake, plan, "It was begun, and this database's audit has no action of it."
            )
        return actions

    def _actions(self, session: Session) -> list[leases.Action]:
        with session.transaction("read the audit") as connection:
            return leases.actions(connection, self._queue, self._plan.cutoff_time)

    def _end_earlier_actions(self, session: Session, earlier: Sequence[leases.Action]) -> None:
        """Of interrupted runs: late tasks of theirs then see that it has ended."""
        for action in earlier:
            if not action.ended:
                with session.transaction("end an earlier action") as connection:
                    detail = f"interrupted; plan {self._plan.id} continues in a later action"
                    audit.end(connection, action.action_id, "stopped", detail)

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

    def _export(self, action_id: int, *, again: bool, deleting: bool) -> Manifests:
        """The manifest of each range; all of them are in the lake then."""
        plan = self._plan
        manifests = self._earlier_manifests(deleting=deleting) if again else {}
        items = export.items(
            self._database.product,
            self._queue,
            url_for_tasks(self._database),
            self._lake,
            plan,
            [part for part in plan.ranges if part.number not in manifests],
            self._lease.working_text(self._database.product, action_id),
        )
        if again:
            self._lease.require()
            export.discard_files(self._lake, plan, {item["range"]["number"] for item in items})
        with self._phase("export"):
            on_progress = partial(self._on_progress, "export")
            new = self._tasks.run(export.export, items, on_progress, at_once=self._at_once)
        self._result.rows["export"] = sum(manifest["rows"] for manifest in new)
        return manifests | {manifest["range"]: manifest for manifest in new}

    def _earlier_manifests(self, *, deleting: bool) -> Manifests:
        """Of earlier runs. Until rows are deleted, a damaged one counts as missing: the database
        still has its rows."""
        found: Manifests = {}
        for part in self._plan.ranges:
            path = self._plan.range_path(part.number)
            try:
                found[part.number] = self._manifest(path, part)
            except FileNotFoundError:
                if deleting:
                    raise _unusable(self._lake.path(path), "It is missing.") from None
            except DamagedError:
                if deleting:
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

    def _verified_rows(self) -> int | None:
        """None where no earlier run says that it has verified them."""
        with suppress(FileNotFoundError, DamagedError):
            rows = self._lake.read_json(self._verified_path).get("rows")
            return rows if isinstance(rows, int) else None
        return None

    def _verify(self, manifests: Manifests, *, deleting: bool) -> None:
        """Until rows are deleted: from then on files may have been rewritten."""
        if deleting and (rows := self._verified_rows()) is not None:
            self._result.exported = rows
            return
        with self._phase("verify"):
            items = files.items(self._lake, list(manifests.values()))
            results = self._tasks.run(files.verify, items, partial(self._on_progress, "verify"))
        self._result.rows["verify"] = sum(result["rows"] for result in results)
        if wrong := [result for result in results if result["wrong"]]:
            what = (
                f"{len(wrong)} of {len(results)} ranges are not in the lake as they were written."
            )
            why = str(wrong[0]["wrong"][0])
            if deleting:
                raise DamagedError(
                    what,
                    why=f"{why}. {self._lake.path(self._verified_path)} is missing or damaged too, "
                    "which says that they had been verified.",
                    next_step="Nothing more is deleted. Put the files back from a backup of the "
                    "lake.",
                )
            for result in wrong:
                # Its rows are all still in the database: the next run exports them again.
                self._lake.discard(self._plan.range_path(result["range"]))
            raise DamagedError(
                what,
                why=why,
                next_step="Nothing was deleted. Check the lake's disk, then run it again: it "
                "exports these ranges again.",
            )
        rows = sum(int(manifest["rows"]) for manifest in manifests.values())
        self._lake.write_json(self._verified_path, {"plan": self._plan.id, "rows": rows})
        self._result.exported = rows

    # -- delete, withdraw

    def _delete(self, session: Session, manifests: Manifests, action_id: int) -> Keys:
        """Delete what was exported; by range the keys of the rows that the lake is to keep."""
        intents = delete.Intents(self._lake, self._plan)
        intents.committed = {action.action_id: action.done for action in self._actions(session)}
        deleter = delete.Deleter(
            session,
            self._queue,
            self._plan,
            intents,
            action_id,
            self._lease.renew,
            batch_rows=self._batch,
        )
        parts = self._plan.ranges
        on_progress = partial(self._on_progress, "delete", of=len(parts), size=0)
        gone: Keys = {}
        with self._phase("delete"):
            for number, part in enumerate(parts):
                before = intents.deleted(part.number)
                keys = delete.exported(self._lake, manifests[part.number], before)
                for _ in deleter.range(part, keys, before):
                    on_progress(done=number, rows=deleter.done)
                rest = keys.keys() - deleter.deleted
                gone[part.number] = keys.keys() - deleter.present(part, keys, rest)
        self._result.rows["delete"] = deleter.done
        on_progress(done=len(parts), rows=deleter.done)
        return self._kept(session, intents, gone)

    def _kept(self, session: Session, intents: delete.Intents, gone: Keys) -> Keys:
        """Of the exported rows that the database does not have, those that nobody took back.

        What it has is withdrawn from the lake. What it does not have was deleted by this plan, or
        taken by an operator's action, as a restore does. DamagedError where it is not known which.
        """
        plan = self._plan
        actions = self._actions(session)
        with session.transaction("read the audit") as connection:
            times = plan.cutoff_time, plan.made_time
            taken = leases.taken_by_others(connection, self._queue, *times)
        missing = sum(map(len, gone.values()))
        counted = sum(action.done for action in actions)
        if not taken or missing == counted:
            return gone
        intents.committed = {action.action_id: action.done for action in actions}
        deleted = {number: intents.deleted(number) for number in gone}
        known = sum(map(len, deleted.values()))
        if known == counted and missing - known <= taken:
            return {number: keys & deleted[number] for number, keys in gone.items()}
        raise DamagedError(
            f"It is not known which rows of the plan {plan.id} only the lake has.",
            why=f"The database lacks {missing:,} of the exported rows. By its audit this plan "
            f"deleted {counted:,}, of which the lake knows {known:,}, and other actions, as "
            f"restore, can have taken {taken:,}.",
            next_step="Nothing more is changed: the lake keeps them all. Put the files of "
            f"{self._lake.path(plan.manifests)}/deletes back from a backup of the lake, or from "
            f"its folder {TRASH}, then run it again.",
        )

    def _withdraw(self, manifests: Manifests, kept: Keys, action_id: int) -> None:
        result, paths = self._result, set()
        with self._phase("withdraw"):
            for part in self._plan.ranges:
                manifest = delete.withdraw(
                    self._lake,
                    self._plan,
                    part,
                    manifests[part.number],
                    kept[part.number],
                    self._lease.require,
                )
                result.deleted += len(kept[part.number])
                result.bytes += int(manifest["bytes"])
                result.size += int(manifest["size"])
                paths |= {file["path"] for file in manifest["files"]}
        result.files = len(paths)
        result.withdrawn = result.exported - result.deleted
        result.rows["withdraw"] = result.withdrawn
        self._lease.require()
        self._remove_others(paths)
        content = {**result.as_json(), "action": action_id, "queue": self._queue.name}
        self._lake.write_json(self._plan.done_path, {**content, "paths": sorted(paths)})
        delete.Intents(self._lake, self._plan).clear()

    def _remove_others(self, paths: set[str]) -> None:
        """The plan's files that no manifest names: withdrawn as a whole, or of failed attempts."""
        prefixes = (f"{self._plan.id}-", f"_tmp-{self._plan.id}-")
        for path in self._lake.files(self._plan.folder):
            if path not in paths and path.rsplit("/", 1)[-1].startswith(prefixes):
                self._lake.discard(path)


def _unusable(path: str, why: str) -> DamagedError:
    return DamagedError(
        f"The manifest {path} cannot be used.",
        why=why,
        next_step="Nothing more is deleted. Rows of the range may be deleted already: put the file "
        "back from a backup of the lake.",
    )
