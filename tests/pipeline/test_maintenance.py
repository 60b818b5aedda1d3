"""Care of the lake: compact, expire, erase, lake, and the archive of all queues.

Whatever is at work beside it: each row is in the table once, but for those to be taken out.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from hypothesis import given
from hypothesis import strategies as st

from console.catalog.audit import EntryFilter, entries
from console.engines import open_database
from console.errors import RefusedError
from console.features.lake import delta
from console.features.lake import spark as sessions
from console.features.lake.archive import files
from console.features.lake.archive.files import SCHEMA, pq
from console.features.lake.filters import matches, parse_filters
from console.features.lake.lake import DamagedError, Lake
from console.features.lake.maintenance import compact, erase, removal
from console.features.lake.maintenance import expire as expiring
from console.features.lake.runs import read as runs_in
from console.features.lake.table import MessagesTable
from tests.cli.calls import call
from tests.contract.client import Client
from tests.pipeline.archive_tools import (
    HookedTasks,
    archived_keys,
    execute_sql,
    flip,
    push_and_pop,
    rows_in_lake,
    run,
    stop_at,
)
from tests.pipeline.conftest import NewQueue
from tests.servers import READ_CATALOG, login
from tests.servers.cluster import s3_environment
from tests.tools.local_tasks import LocalTasks

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where the runs of this test are, and of no other."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "dbq-console"


def opened(lake: Lake) -> MessagesTable:
    table = MessagesTable.open(lake)
    assert table is not None
    return table


def planned(lake: Lake, keep: float = compact.KEPT_SECONDS) -> compact.SmallFiles:
    return compact.find(lake, keep)


def rows(lake: Lake) -> list[dict[str, Any]]:
    """In one order, whatever the order of files."""
    return sorted(rows_in_lake(lake), key=lambda row: (row["queue"], row["archive_id"]))


def several_runs(client: Client, lake: Lake, count: int = 3) -> None:
    for _ in range(count):
        push_and_pop(client, 5)
        run(client, lake)


def archived_on(client: Client, day: str) -> None:
    """What is in its archive has been there since that day."""
    execute_sql(client, "UPDATE <archive> SET archived_at = :at", at=datetime.fromisoformat(day))


# -- compact


def test_compact_merges_the_small_files_of_each_day(new_queue: NewQueue, lake: Lake) -> None:
    client, other = (new_queue("fifo", "a%/b?", archive_at_pop="on") for _ in range(2))
    several_runs(client, lake)
    several_runs(other, lake, 2)
    push_and_pop(client, 4)
    archived_on(client, "2020-02-03T00:00+00:00")
    run(client, lake)
    before = rows(lake)
    offered = planned(lake)
    assert (offered.files, len(offered.groups)) == (5, 2)

    done = compact.compact(offered)
    assert (done.merged, done.into, done.rows, done.removed) == (5, 2, 25, 0)
    assert rows(lake) == before
    assert len(opened(lake).all_files()) == 3
    assert [file.rows for file in opened(lake).all_files()] == [4, 15, 10]
    assert planned(lake).groups == []
    assert len(lake.data_files("messages")) == 3 + 5, "readers at work may need them"


def test_compact_removes_at_last_what_nobody_reads(new_queue: NewQueue, lake: Lake) -> None:
    client = new_queue("fifo", "a%/b?", archive_at_pop="on")
    several_runs(client, lake)
    assert compact.compact(planned(lake, 0.0)).removed == 3
    assert compact.compact(planned(lake, 0.0)).removed == 0
    (left,) = opened(lake).all_files()
    assert lake.data_files("messages") == [left.path]
    assert len(rows(lake)) == 15


def test_files_of_a_run_at_work_are_not_removed(filled: Client, lake: Lake) -> None:
    push_and_pop(filled, 2)
    stop_at(filled, lake, "verify")
    exported = set(lake.data_files("messages"))
    assert exported
    assert compact.compact(planned(lake, 0.0)).removed == 0
    assert set(lake.data_files("messages")) == exported


def test_files_too_old_are_not_committed(
    filled: Client, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a machine that stood still: they may have been removed meanwhile."""
    with monkeypatch.context() as days_later:
        days_later.setattr(delta, "LEFTOVER_SECONDS", 0.0)
        with pytest.raises(RefusedError, match="too old"):
            run(filled, lake)
    assert (rows(lake), len(archived_keys(filled))) == ([], 30)
    assert run(filled, lake)[0].deleted == 30


def between(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """`act` comes between the writing of files and their commit, once."""
    ours, acts = MessagesTable.exchange, [act]

    def exchange(self: MessagesTable, *words: Any, **more: Any) -> bool:
        while acts:
            acts.pop()()
        return ours(self, *words, **more)

    monkeypatch.setattr(MessagesTable, "exchange", exchange)


def test_an_archive_run_beside_compact(
    filled: Client, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    several_runs(filled, lake)
    push_and_pop(filled, 4)
    between(monkeypatch, lambda: run(filled, lake))
    assert compact.compact(planned(lake)).rows == 45
    assert len({row["archive_id"] for row in rows(lake)}) == len(rows(lake)) == 49


def age_log(lake: Lake) -> None:
    """So that a compaction removes it, with the commit that others have opened."""
    a_month_ago = time.time() - 40 * 86_400
    for path in Path(lake.path("messages/_delta_log")).iterdir():
        os.utime(path, (a_month_ago, a_month_ago))


def test_a_compaction_that_forgets_commits_of_a_month_ago_is_no_other_lake(
    filled: Client, lake: Lake
) -> None:
    several_runs(filled, lake, 5)
    push_and_pop(filled, 5)
    age_log(lake)
    forgets = HookedTasks(files.verify, lambda: compact.compact(planned(lake)))
    (done,) = run(filled, lake, tasks=forgets)
    assert (done.exported, done.deleted) == (5, 5)
    assert len(rows(lake)) == 60


def test_of_two_compactions_of_a_lake_of_a_month_ago_one_is_refused(
    filled: Client, lake: Lake
) -> None:
    several_runs(filled, lake, 5)
    age_log(lake)
    late = planned(lake)
    compact.compact(planned(lake))
    with pytest.raises(RefusedError, match="Another run took files out"):
        compact.compact(late)
    assert len(rows(lake)) == 55


@pytest.mark.parametrize("ours", [True, False], ids=["this console", "another program"])
def test_two_compactions_never_double_a_row(
    filled: Client, lake: Lake, monkeypatch: pytest.MonkeyPatch, *, ours: bool
) -> None:
    several_runs(filled, lake)
    before = rows(lake)
    offered = planned(lake)
    path = lake.path("messages")
    other = (lambda: compact.compact(planned(lake))) if ours else DeltaTable(path).optimize.compact
    between(monkeypatch, other)
    with pytest.raises(RefusedError, match="took files out"):
        compact.compact(offered)
    assert rows(lake) == before
    assert compact.compact(planned(lake)).merged == 0


def test_another_program_cannot_take_out_again_what_was_merged(filled: Client, lake: Lake) -> None:
    several_runs(filled, lake)
    before, theirs = rows(lake), DeltaTable(lake.path("messages"))
    compact.compact(planned(lake))
    with pytest.raises(CommitFailedError):
        theirs.optimize.compact()
    assert rows(lake) == before


def test_what_was_removed_meanwhile_is_no_damage(filled: Client, lake: Lake) -> None:
    several_runs(filled, lake)
    offered = planned(lake)
    compact.compact(planned(lake, 0.0))
    with pytest.raises(RefusedError, match="took files out"):
        compact.compact(offered)


def test_a_damaged_file_is_not_merged(filled: Client, lake: Lake) -> None:
    several_runs(filled, lake, 2)
    file = Path(lake.path(opened(lake).all_files()[0].path))
    file.write_bytes(flip(file.read_bytes()))
    with pytest.raises(DamagedError, match="not what the table says"):
        compact.compact(planned(lake))
    assert len(opened(lake).all_files()) == 2
    assert not [name for name in lake.data_files("messages") if "rewritten" in name]


# -- erase


@contextmanager
def local_tasks(*_: object) -> Iterator[LocalTasks]:
    yield LocalTasks()


def test_erase_takes_out_all_about_somebody(new_queue: NewQueue, lake: Lake, state: Path) -> None:
    fifo = new_queue("fifo", archive_at_pop="on")
    fifo.push_many([*(f"jane.doe {n}" for n in range(3)), *(f"john {n}" for n in range(4))])
    fifo.drain()
    other = new_queue("fifo", payload="bytes", archive_at_pop="on")
    other.push_many([b"\xffjane.doe", b"\xffjohn"])
    other.drain()
    for client in (fifo, other):
        run(client, lake)
    where = ("--lake", lake.location, "--url", fifo.url)
    words = ("pipeline", "erase", *where, "--filter", "payload~jane.doe")
    before = rows(lake)
    plan = call(*words, "--dry-run", "--json")
    assert (plan.status, plan.json["plan"]["rows"], rows(lake)) == (0, 4, before), plan.err
    refused = call(*words)
    assert (refused.status, "confirm with: --yes" in refused.err) == (4, True)

    done = call(*words, "--yes", "--json")
    assert (done.status, done.json["done"]) == (0, 4), done.err
    left = [row for row in before if "jane" not in str(row["payload"] or row["payload_bytes"])]
    assert rows(lake) == left
    assert len(left) == 5
    assert "jane" in everything_in(lake), "not final yet"
    (ended,) = [one for one in audited(fifo, erase.VERB) if one.queue == fifo.queue.name]
    assert (ended.done, ended.outcome, "jane" in str(ended)) == (3, "done", False)
    assert "jane" not in str(runs_in(state / "runs").runs)

    final = call("pipeline", "compact", "--lake", lake.location, "--keep", "0s", "--yes")
    assert final.status == 0, final.err
    assert "jane" not in everything_in(lake)
    assert rows(lake) == left


@pytest.mark.parametrize("word", ["{}", "paylaod~{}", "since={}", "until=x{}", "=~{}"])
@pytest.mark.parametrize("value", ["jane.doe@example.org", "it's jane\\\n", 'jane "doe" ü'])
@pytest.mark.parametrize("verb", ["erase", "replay mail"])
def test_a_mistyped_filter_is_in_no_run_file(
    lake: Lake, state: Path, word: str, value: str, verb: str
) -> None:
    given_word = word.format(value)
    wrong = call("pipeline", *verb.split(), "--lake", lake.location, "--filter", given_word)
    assert wrong.status == 2, wrong.err
    assert "jane" in wrong.err, "its user may see it"
    # Most are refused before there is a run.
    files = [*(state / "runs").glob("*")]
    assert bool(files) == word.startswith(("since", "until"))
    assert not any("jane" in file.read_text() for file in files)
    assert all("***" in run.error["what"] for run in runs_in(state / "runs").runs)


def everything_in(lake: Lake) -> str:
    """Of all files, in the table or not."""
    return "".join(str(pq.read_table(lake.path(path)).to_pylist()) for path in lake.data_files(""))


def audited(client: Client, verb: str) -> list[Any]:
    with client.database.transaction("read the audit", read_only=True) as connection:
        return list(entries(connection, EntryFilter(client.queue.schema, None, verb)))


def test_an_id_is_of_one_queue(filled: Client, lake: Lake) -> None:
    run(filled, lake)
    words = ("pipeline", "erase", "--lake", lake.location, "--url", filled.url, "--id", "7")
    assert call(*words).status == 2
    assert "Name it with --queue" in call(*words).err
    done = call(*words, "--queue", filled.queue.name, "--yes")
    assert (done.status, len(rows(lake))) == (0, 29), done.err
    call(*words, "--queue", "nobody").failed(2, "has nothing of 'nobody'")


def test_erase_finds_what_came_after_its_plan(filled: Client, lake: Lake) -> None:
    several_runs(filled, lake)
    table = opened(lake)
    filters = parse_filters([f"payload~{filled.queue.name} 1"])
    offered = erase.find(table, filters, removal.queues_of(table), filled.database.label)
    several_runs(filled, lake, 1)
    compact.compact(planned(lake))
    erase.erase(filled.database, offered)
    assert not [row for row in rows(lake) if f"{filled.queue.name} 1" in row["payload"]]
    assert len(rows(lake)) == 50 - 11 - 4


def test_nothing_is_taken_out_beside_an_unfinished_plan(filled: Client, lake: Lake) -> None:
    stop_at(filled, lake, "delete")
    words = ("pipeline", "erase", "--lake", lake.location, "--url", filled.url, "--yes")
    call(*words, "--filter", "reason=pop").failed(4, "unfinished plan")
    expired = call("pipeline", "expire", *words[2:], "--older", "0s")
    assert expired.status == 0, "its days are not over"
    assert len(rows(lake)) == 30
    run(filled, lake)
    assert call(*words, "--filter", "reason=pop").status == 0
    assert rows(lake) == []
    assert archived_keys(filled) == []


def test_who_may_only_read_the_database_takes_nothing_out(filled: Client, lake: Lake) -> None:
    run(filled, lake)
    before = rows(lake)
    with login(filled.url, *READ_CATALOG) as url:
        where = ("--lake", lake.location, "--url", url, "--from", filled.database.label)
        for words in (("erase", "--filter", "reason=pop"), ("expire", "--older", "0s")):
            refused = call("pipeline", *words, *where, "--yes", f"--queue={filled.queue.name}")
            assert refused.status == (4 if words[0] == "erase" else 0), refused.err
        call("pipeline", "erase", "--filter", "reason=pop", *where, "--rights", "read-only").failed(
            4, "needs the right operator"
        )
    assert rows(lake) == before


_TEXT = st.text("ab%_'\\\"", max_size=4)
_ENCODINGS = ("utf-8", "utf-16-le", "utf-16-be")
_ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "id": _TEXT,
            "title": st.none() | _TEXT,
            "error": st.none() | _TEXT,
            "payload": st.none() | _TEXT,
            "in_bytes": st.none() | st.tuples(_TEXT, st.sampled_from(_ENCODINGS)),
            "archived_at": st.none() | st.datetimes().map(lambda at: at.replace(tzinfo=UTC)),
        }
    ),
    max_size=8,
)


@given(_ROWS, st.lists(st.tuples(st.sampled_from(["id=", "title~", "error=", "payload~"]), _TEXT)))
def test_filters_match_what_they_say(made: list[dict[str, Any]], given_: Any) -> None:
    """A null matches nothing, so it is never erased by a filter about its column."""
    words = [(name, value) for name, value in given_ if value]
    if not words:
        return

    def is_match(row: dict[str, Any], name: str, value: str) -> bool:
        column, operator = name[:-1], name[-1]
        if column == "payload":
            texts = row["payload"] or "", (row["in_bytes"] or [""])[0]
            return any(value in text for text in texts)
        found = row[column]
        return found is not None and (found == value if operator == "=" else value in found)

    encoded = [
        {**row, "payload_bytes": of and of[0].encode(of[1])}
        for row in made
        for of in [row["in_bytes"]]
    ]
    batch = pa.RecordBatch.from_pylist(encoded, schema=SCHEMA)
    found = matches(batch, parse_filters([name + value for name, value in words])).to_pylist()
    ids = {value for name, value in words if name == "id="}
    expected = [
        (not ids or row["id"] in ids)
        and all(is_match(row, name, value) for name, value in words if name != "id=")
        for row in made
    ]
    assert found == expected


def test_the_archive_of_another_connection_is_not_taken_for_ones_own(
    filled: Client, lake: Lake
) -> None:
    run(filled, lake)
    push_and_pop(filled, 3)
    stop_at(filled, lake, "delete")
    words = ("pipeline", "erase", "--lake", lake.location, "--url", filled.url, "--yes")
    named = ("--filter", "reason=pop", "--queue", filled.queue.name)
    assert call(*words, *named).status == 4, "its plan is unfinished"
    call(*words, "--filter", "payload~nobody").failed(4, "unfinished plan")
    call(*words, "--filter", "reason=pop", "--from", "elsewhere").failed(
        2, "nothing of the connection elsewhere", filled.database.label
    )

    with closing(open_database(filled.url, label="other name")) as database:
        other = erase.find(
            opened(lake),
            parse_filters(["reason=pop"]),
            removal.queues_of(opened(lake)),
            "other name",
        )
        planned_erase = erase.plan(database, other, production=False)
        assert "not known here" in "\n".join(planned_erase.lines)
        planned_erase.run_to_end()
    with filled.database.transaction("read the audit", read_only=True) as connection:
        entry, *_ = entries(connection, EntryFilter(None, None, erase.VERB))
    assert (entry.schema, entry.queue, entry.connection) == ("", "", filled.database.label)


# -- expire


def test_expire_takes_out_whole_days(
    new_queue: NewQueue, lake: Lake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kept, client = (new_queue("fifo", archive_at_pop="on") for _ in range(2))
    today = datetime.now(UTC).date()
    for one, days in ((kept, 900), (client, 900), (client, 732), (client, 728), (client, 2)):
        push_and_pop(one, 3)
        archived_on(one, f"{today - timedelta(days=days)}T12:00+00:00")
        run(one, lake)
    words = ("pipeline", "expire", "--lake", lake.location, "--url", client.url)
    call(*words).failed(2, "how long")
    one_queue = call(*words, "--older", "2y", "--queue", client.queue.name, "--yes", "--json")
    assert (one_queue.status, one_queue.json["done"]) == (0, 6), one_queue.err
    assert days_of(lake, client) == [today - timedelta(days=days) for days in (728, 2)]
    every_day = call(*words, "--older", "0s", "--queue", client.queue.name, "--dry-run", "--json")
    assert every_day.json["plan"]["rows"] == 6, "not the configuration's age"
    assert [one.done for one in audited(client, expiring.VERB)][:1] == [6]

    file = tmp_path / "dbq.toml"
    file.write_text(
        f'[profiles.p]\nurl = "${{env:HERE}}"\nrights = "operator"\n'
        f'expire = "4d"\n[profiles.p.queues."{kept.queue.name}"]\nexpire = "off"\n'
    )
    monkeypatch.setenv("DBQ_CONFIG", str(file))
    monkeypatch.setenv("HERE", client.url)
    words = ("pipeline", "expire", "--lake", lake.location, "--profile", "p")
    every = call(*words, "--from", client.database.label, "--yes", "--json")
    assert (every.status, every.json["done"]) == (0, 3), every.err
    assert days_of(lake, client) == [today - timedelta(days=2)]
    assert days_of(lake, kept) == [today - timedelta(days=900)]


def days_of(lake: Lake, client: Client) -> list[date]:
    return sorted({row["date"] for row in rows(lake) if row["queue"].endswith(value_of(client))})


def value_of(client: Client) -> str:
    return client.queue.name.replace(".", "%2E").replace("ü", "%C3%BC")


# -- lake, and archive of all queues


def test_archive_of_all_queues_by_their_ages_and_what_the_lake_has(
    new_queue: NewQueue, lake: Lake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sessions, "tasks", local_tasks)
    off, young, all_of = (new_queue("fifo", archive_at_pop="on") for _ in range(3))
    for client in (off, young, all_of):
        push_and_pop(client, 3)
    file = tmp_path / "dbq.toml"
    file.write_text(
        f'[profiles.p]\nurl = "${{env:HERE}}"\nrights = "operator"\ngroup = "g"\n'
        f'[profiles.p.queues."{off.queue.name}"]\narchive = "off"\n'
        f'[profiles.p.queues."{young.queue.name}"]\narchive = "7d"\n'
        '[profiles.down]\nurl = "postgresql+psycopg://nobody@127.0.0.1:1/none"\n'
        'rights = "operator"\ngroup = "g"\n'
    )
    monkeypatch.setenv("DBQ_CONFIG", str(file))
    monkeypatch.setenv("HERE", off.url)
    words = ("pipeline", "archive", "--lake", lake.location)
    assert call(*words, "--profile", "p").status == 2
    assert call(*words, "x", "--all", "--profile", "p").status == 2
    done = call(*words, "--group", "g", "--yes", "--json")
    assert done.status == 3, done.err
    assert "down" in done.json["problems"][0]
    ours = [one for one in done.json["queues"] if one["queue"] == all_of.queue.name]
    assert [mine["result"]["exported"] for mine in ours] == [3]
    assert [len(archived_keys(client)) for client in (off, young, all_of)] == [3, 3, 0]
    again = call(*words, "--all", "--profile", "p", "--dry-run", "--json")
    assert (again.status, all_of.queue.name in str(again.json)) == (0, False), again.err

    several_runs(all_of, lake, 2)
    shown = call("pipeline", "lake", "--lake", lake.location, "--json").json
    (found,) = [
        one
        for one in shown["queues"]
        if (one["queue"], one["connection"]) == (all_of.queue.name, all_of.database.label)
    ]
    figures = ("rows", "days", "files", "files_to_compact", "last_plan")
    assert [found[figure] for figure in figures] == [10, 1, 2, 2, 3]
    assert found["last_plan_at"] is not None
    lines = call("pipeline", "lake", "--lake", lake.location).text.splitlines()
    assert lines[1].split() == ["table", "rows", "files", "size"]
    assert "to compact" in lines[4]
    call("pipeline", "lake", "--lake", str(tmp_path / "nowhere")).failed(2, "has no archive yet")


@pytest.mark.parametrize(
    ("location", "status", "words"),
    [
        ("", 2, "--lake is empty"),
        ("  ", 2, "--lake is empty"),
        ("file", 2, "It is a file"),
        ("s3://bucket/lake", 3, "cannot be reached"),
        ("nothing://bucket/lake", 2, "not a usable location"),
    ],
)
def test_a_lake_that_is_none_or_cannot_be_reached_is_refused_by_every_verb(
    filled: Client,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    location: str,
    status: int,
    words: str,
) -> None:
    monkeypatch.setattr(sessions, "tasks", local_tasks)
    for variable, value in s3_environment("http://127.0.0.1:9").items():
        monkeypatch.setenv(variable, value)
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    queue = filled.queue.name
    for verb in (
        ("lake",),
        ("compact", "--yes"),
        ("expire", "--older", "1d", "--yes", "--url", filled.url),
        ("erase", "--filter", "state=done", "--yes", "--url", filled.url),
        ("archive", queue, "--retention", "0s", "--yes", queue, "--url", filled.url),
        ("replay", queue, "--yes", queue, "--url", filled.url),
    ):
        refused = call("pipeline", *verb, "--lake", location)
        assert (refused.status, words in refused.err) == (status, True), (verb, refused.err)
    assert len(archived_keys(filled)) == 30
