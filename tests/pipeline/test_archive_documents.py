"""archive on a lake that lost a document, or at an address that leads to another database.

Whatever is lost, at whatever moment of a run: the next run ends with every message in the database
or in the lake exactly once, or it stops with words, and nothing is lost.
"""

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from console.actions.install import install
from console.actions.restore import Restore
from console.engines import open_database
from console.errors import ConsoleError, RefusedError
from console.pipeline.archive import job
from console.pipeline.archive.files import pq
from console.pipeline.archive.plan import find_archive
from console.pipeline.lake import DamagedError, Lake
from tests.contract.client import Client
from tests.local_tasks import LocalTasks
from tests.pipeline.archive_tools import (
    NO_RETENTION,
    act,
    all_payloads,
    archived_keys,
    execute_sql,
    payloads,
    push_and_pop,
    run,
    stop_at,
)
from tests.pipeline.conftest import NewQueue
from tests.servers import login

ROWS, RANGE, BATCH = 12, 6, 4


def read_back(lake: Lake, client: Client) -> Counter[str]:
    """The payloads in the files that readers are told of; none of unfinished plans."""
    try:
        archive = find_archive(lake, None, None, client.queue.name)
    except RefusedError:
        return Counter()
    found = Counter[str]()
    for path in (path for paths in archive.files.values() for path in paths):
        with lake.reading(path) as file:
            found.update(p.decode() for p in pq.read_table(file)["payload"].to_pylist())
    return found


def remove(lake: Lake, part: str) -> None:
    (path,) = [path for path in lake.files("_manifests") if part in path]
    Path(lake.path(path)).unlink()


# -- the four ways in which messages were lost


def test_a_plan_without_its_last_document_is_finished_from_what_the_database_has(
    filled: Client, lake: Lake
) -> None:
    """done.json was torn, and its operator moved it away."""
    sent = Counter(row[0] for row in execute_sql(filled, "SELECT payload FROM <archive>"))
    run(filled, lake, range_rows=10)
    remove(lake, "done.json")
    (done,) = run(filled, lake)
    assert (done.exported, done.deleted, done.withdrawn) == (30, 30, 0)
    assert all_payloads(filled, read_back(lake, filled)) == sent


def test_rows_whose_intent_is_lost_stay_in_the_lake(filled: Client, lake: Lake) -> None:
    sent = Counter(row[0] for row in execute_sql(filled, "SELECT payload FROM <archive>"))
    stop_at(filled, lake, "delete")
    assert len(archived_keys(filled)) == 23
    remove(lake, "/deletes/")
    (done,) = run(filled, lake)
    assert (done.deleted, done.withdrawn) == (30, 0)
    assert all_payloads(filled, read_back(lake, filled)) == sent


def test_a_backup_of_the_lake_from_before_the_deletes_loses_nothing(
    filled: Client, lake: Lake, tmp_path: Path
) -> None:
    sent = Counter(row[0] for row in execute_sql(filled, "SELECT payload FROM <archive>"))
    stop_at(filled, lake, "verify")
    backup = tmp_path / "backup"
    shutil.copytree(lake.location, backup)
    run(filled, lake)
    shutil.rmtree(lake.location)
    backup.rename(lake.location)
    (done,) = run(filled, lake)
    assert (done.deleted, done.withdrawn) == (30, 0)
    assert all_payloads(filled, read_back(lake, filled)) == sent


@pytest.mark.parametrize("phase", ["export", "verify", "delete"])
def test_a_plan_is_not_finished_in_another_database_at_the_same_address(
    filled: Client, lake: Lake, database_url: str, phase: str
) -> None:
    stop_at(filled, lake, phase)
    with closing(open_database(database_url, label=filled.database.label)) as database:
        install(database, filled.queue)
        other = replace(filled, database=database)
        sent = push_and_pop(other, 30)
        before = {path: lake.size(path) for path in lake.files("")}
        with pytest.raises(DamagedError, match="another database"):
            run(other, lake)
        assert Counter(sent) == all_payloads(other, Counter())
        assert {path: lake.size(path) for path in lake.files("")} == before
    run(filled, lake)
    assert payloads(lake).total() == 30


def test_a_catalog_of_an_older_console_gets_its_id_from_its_owner(
    filled: Client, lake: Lake
) -> None:
    execute_sql(filled, "DROP TABLE dbq.catalog_id")
    rights = (
        "GRANT USAGE ON SCHEMA dbq, public TO {}",
        "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA dbq, public TO {}",
    )
    with login(filled.url, *rights) as url, closing(open_database(url)) as database:
        with pytest.raises(RefusedError, match="Let the catalog's owner run"):
            run(replace(filled, database=database), lake)
        assert lake.files("") == []
        run(filled, lake)
        execute_sql(filled, f"GRANT SELECT ON dbq.catalog_id TO {database.url.username}")
        push_and_pop(filled, 5)
        (done,) = run(replace(filled, database=database), lake)
        assert done.deleted == 5, "who may act needs no more rights than before"


# -- every document, at every moment


class Stopped(Exception):  # noqa: N818
    """Instead of a kill: what was written and committed stays."""


@contextmanager
def stopping_before(write: int, seen: list[str]) -> Iterator[None]:
    """Within it a run stops before its so-manieth file is written; `seen` gets their paths."""
    original = Lake.writing

    def writing(lake: Lake, path: str, **how: Any) -> Any:
        if len(seen) == write:
            raise Stopped
        seen.append(path)
        return original(lake, path, **how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Lake, "writing", writing)
        yield


@dataclass
class Site:
    """A queue whose archive is filled anew for each case, and a lake of each case."""

    client: Client
    lake: Lake
    restores: bool
    """An operator restores two messages before the run deletes."""
    range_rows: int = RANGE
    sent: Counter[str] = field(default_factory=Counter)

    def begin(self) -> Counter[str]:
        execute_sql(self.client, "DELETE FROM <archive>")
        execute_sql(self.client, "DELETE FROM <>")
        return Counter(push_and_pop(self.client, ROWS))

    def run_until(self, write: int, seen: list[str]) -> bool:
        """Whether the run ended before that write."""
        database, queue = self.client.database, self.client.queue
        offered = job.preview(database, queue, self.lake, NO_RETENTION, range_rows=self.range_rows)
        restored: list[int] = []

        def on_progress(phase: str, /, **_: int) -> None:
            if self.restores and phase == "verify" and not restored:
                restored.append(act(self.client, lambda one: Restore(one, popped=True), "limit=2"))

        tasks = LocalTasks()
        try:
            with stopping_before(write, seen):
                job.archive(
                    database, offered, self.lake, tasks, on_progress=on_progress, batch=BATCH
                )
        except Stopped:
            return False
        return True

    def documents(self) -> list[str]:
        """All files that a run may need; none in the trash."""
        return [path for path in self.lake.files("") if not path.startswith("_trash/")]

    def finish(self) -> ConsoleError | None:
        """A run by its operator: how it stopped, if it did."""
        try:
            run(self.client, self.lake)
        except ConsoleError as error:
            return error
        return None

    def count(self) -> Counter[str]:
        return all_payloads(self.client, read_back(self.lake, self.client))

    def on_disk(self) -> Counter[str]:
        """In the database, or in any file at all."""
        found = Counter[str]()
        for path in self.lake.files(""):
            if ".parquet" in path:
                with self.lake.reading(path) as file:
                    found.update(p.decode() for p in pq.read_table(file)["payload"].to_pylist())
        return all_payloads(self.client, found)


def torn(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-9])


FAULTS: dict[str, Callable[[Path], object]] = {"missing": Path.unlink, "torn": torn}


def check_loss(site: Site, document: str, fault: str) -> str:
    """Lose a document and run again; the outcome."""
    file = Path(site.lake.path(document))
    kept = file.read_bytes()
    FAULTS[fault](file)
    stopped = site.finish()
    if stopped is None:
        try:
            assert site.count() == site.sent, "each message is in the database or the lake, once"
        except DamagedError:  # of a finished plan only readers need it
            file.write_bytes(kept)
            assert site.count() == site.sent
            return "readers stopped with words"
        return "finished"
    assert all((stopped.why, stopped.next_step))
    assert stopped.exit_status == 3
    if kind(document) != "data":
        assert not site.sent - site.on_disk(), "nothing is lost"
    # Its operator puts back what was lost, as the words say.
    file.write_bytes(kept)
    again = site.finish()
    if again is not None:  # what was exported anew must be verified anew
        again = site.finish()
    assert again is None, again
    assert site.count() == site.sent
    return "stopped with words, then finished"


def kind(document: str) -> str:
    """A document without its numbers."""
    folder, _, name = document.rpartition("/")
    for part in ("deletes", "runs"):
        if folder.endswith(part):
            return part
    return "data" if name.endswith(".parquet") else name.partition("-")[0].partition(".")[0]


def moments(site: Site, *, long: bool) -> dict[int, str]:
    """The writes before which a run is stopped: all, or one of each kind; and after the last."""
    seen = list[str]()
    site.begin()
    assert site.run_until(10_000, seen)
    every = {write: kind(path) for write, path in enumerate(seen) if write}
    if not long:  # the last of each kind: the others are there then
        every = {write: name for name, write in {n: w for w, n in every.items()}.items()}
    return every | {10_000: "the end"}


def chosen(site: Site, *, long: bool) -> list[str]:
    """The documents to lose: all, or one of each kind. Of a finished plan no run reads the data."""
    documents = {path if long else kind(path): path for path in site.documents()}
    finished = any(kind(path) == "done" for path in documents.values())
    return [path for path in documents.values() if not (finished and kind(path) == "data")]


CASES = [
    pytest.param(False, "missing", id="quiet, missing"),
    pytest.param(True, "torn", id="with restores, torn"),
    pytest.param(True, "missing", id="with restores, missing", marks=pytest.mark.long),
    pytest.param(False, "torn", id="quiet, torn", marks=pytest.mark.long),
]


@pytest.mark.parametrize(("restores", "fault"), CASES)
def test_no_lost_document_loses_or_doubles_a_message(
    new_queue: NewQueue, tmp_path: Path, restores: bool, fault: str, long: bool
) -> None:
    client = new_queue("fifo", archive_at_pop="on")
    outcomes: Counter[str] = Counter()

    def stopped(name: str, moment: int) -> Site:
        site = Site(client, Lake(tmp_path / name), restores, RANGE if long else ROWS)
        site.sent = site.begin()
        site.run_until(moment, [])
        return site

    for moment, phase in moments(stopped("all", 0), long=long).items():
        if not long and fault == "torn" and phase not in {"deletes", "the end"}:
            continue
        site = stopped(f"{moment}", moment)
        for number, chosen_kind in enumerate(map(kind, chosen(site, long=long))):
            if number:
                site = stopped(f"{moment} {number}", moment)
            document = chosen(site, long=long)[number]
            outcome = check_loss(site, document, fault)
            outcomes[outcome] += 1
            print(f"before {phase}: {chosen_kind} {fault}: {outcome}")
    print(f"{outcomes.total()} cases: {dict(outcomes)}")
    assert len(outcomes) >= 2


@pytest.mark.parametrize(
    "restores",
    [
        pytest.param(False, id="quiet", marks=pytest.mark.long),
        pytest.param(True, id="with restores"),
    ],
)
def test_no_backup_of_the_lake_loses_or_doubles_a_message(
    new_queue: NewQueue, tmp_path: Path, restores: bool, long: bool
) -> None:
    """A lake of an earlier moment of a run is put back: the next run ends, or stops with words
    until the newer lake is back."""
    client = new_queue("fifo", archive_at_pop="on")
    outcomes: Counter[tuple[str, str]] = Counter()
    of_all = moments(Site(client, Lake(tmp_path / "all"), restores), long=long)
    for early in list(of_all)[1:-1]:  # from the plan on
        site = Site(client, Lake(tmp_path / f"{early}"), restores)
        root, backup = Path(site.lake.location), tmp_path / f"{early} backup"
        site.sent = site.begin()
        site.run_until(early, [])
        shutil.copytree(root, backup)
        assert site.finish() is None
        newer = root.rename(tmp_path / f"{early} newer")
        backup.rename(root)
        if (stopped := site.finish()) is not None:
            shutil.rmtree(root)
            newer.rename(root)
            assert site.finish() is None
        assert site.count() == site.sent, (of_all[early], stopped)
        outcomes[of_all[early], "finished" if stopped is None else "stopped with words"] += 1
    print(dict(outcomes))
