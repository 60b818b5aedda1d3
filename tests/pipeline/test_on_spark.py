"""Everything that needs a JVM, in one file: see conftest."""

import os
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from console.errors import BusyError, ConsoleError
from console.pipeline import spark as sessions
from console.pipeline.archive import files, job
from console.pipeline.lake import DamagedError, Lake
from console.pipeline.rollup import forecast
from console.pipeline.spark import Item, LocalTasks, SparkTasks
from tests.cli.calls import call
from tests.pipeline import weekly
from tests.pipeline.archive_tools import (
    AT_ONCE,
    archived_keys,
    popped,
    rows_in_lake,
    subscribers_popped,
)
from tests.pipeline.conftest import Use
from tests.pipeline.test_forecast_lake import put, read
from tests.pipeline.test_rollups import late_segments
from tests.pipeline.verify_on_spark import (  # noqa: F401  # one JVM: see above
    test_a_clean_log_is_as_promised,
    test_a_replay_means_what_its_filters_say,
    test_each_wrong_is_found_and_counted,
    test_the_archive_is_a_log_of_pops,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.long
"""A JVM, or a minute of kills: too dear for the short tier."""


def double(item: Item) -> dict[str, Any]:
    """A task."""
    if item["n"] == 13:
        raise BusyError("13 was kept out.", why="It is 13.", next_step="Take 12.")
    if item["n"] == 14:
        raise DamagedError("14 is damaged.")
    if item["n"] == 15:
        raise ZeroDivisionError("nobody expected 15")
    return {"rows": item["n"], "bytes": 2, "twice": 2 * item["n"], "pid": os.getpid()}


def test_each_item_has_a_task_and_the_answers_keep_their_order(spark: "SparkSession") -> None:
    told: list[tuple[int, int, int, int]] = []
    results = SparkTasks(spark.sparkContext).run(
        double,
        [{"n": n} for n in range(7)],
        lambda *, done, of, rows, size: told.append((done, of, rows, size)),
    )
    assert [result["twice"] for result in results] == [0, 2, 4, 6, 8, 10, 12]
    assert os.getpid() not in {result["pid"] for result in results}
    assert told[-1] == (7, 7, 21, 14)
    assert SparkTasks(spark.sparkContext).run(double, []) == []


def crowd(item: Item) -> dict[str, Any]:
    """A task that looks how many are at work."""
    folder = Path(item["folder"])
    (mine := folder / str(item["n"])).touch()
    most = max(len([*folder.iterdir()]) for _ in range(2_000))
    mine.unlink()
    return {"rows": 1, "most": most, "n": item["n"]}


def test_no_more_tasks_are_at_work_than_may_be(spark: "SparkSession", tmp_path: Path) -> None:
    told: list[int] = []
    items = [{"folder": str(tmp_path), "n": n} for n in range(6)]
    results = SparkTasks(spark.sparkContext).run(
        crowd, items, lambda *, done, **_: told.append(done), at_once=1
    )
    assert [(one["n"], one["most"]) for one in results] == [(n, 1) for n in range(6)]
    assert told[-1] == 6
    with pytest.raises(BusyError, match="13"):
        SparkTasks(spark.sparkContext).run(double, [{"n": 1}, {"n": 13}, {"n": 2}], at_once=1)


@pytest.mark.parametrize(
    ("n", "kind", "words"),
    [
        (13, BusyError, "13 was kept out.\nIt is 13.\nTake 12."),
        (14, ConsoleError, "14 is damaged."),
        (15, ConsoleError, "A task of the pipeline failed on Spark.\nZeroDivisionError: nobody"),
    ],
)
def test_an_error_of_a_task_is_the_operators(
    spark: "SparkSession", n: int, kind: type[ConsoleError], words: str
) -> None:
    with pytest.raises(kind) as error:
        SparkTasks(spark.sparkContext).run(double, [{"n": 1}, {"n": n}])
    assert str(error.value).startswith(words)
    assert "Traceback" not in str(error.value)


def test_archive_by_the_command_line(
    spark: "SparkSession", use: Use, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def running(*_: object) -> Any:
        yield SparkTasks(spark.sparkContext)

    monkeypatch.setattr(sessions, "tasks", running)
    client = use("fifo", archive_at_pop="on")
    popped(client, 30)
    name, place = client.queue.name, str(tmp_path / "lake")
    words = ("pipeline", "archive", name, "--lake", place, "--url", client.url)
    done = call(*words, "--yes", "--json")
    assert done.status == 0, done.err
    result = done.json["result"]
    figures = ("exported", "deleted", "withdrawn", "files")
    assert [result[figure] for figure in figures] == [30, 30, 0, 1]
    assert result["bytes"] == sum(len(row["payload"]) for row in rows_in_lake(Lake(place)))
    assert set(result["rows_per_second"]) == set(job.PHASES)
    assert archived_keys(client) == []
    assert len(rows_in_lake(Lake(place))) == 30


def test_the_archive_of_a_ring_with_subscribers_is_a_log_of_pops(
    spark: "SparkSession", use: Use, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def running(*_: object) -> Any:
        yield spark

    monkeypatch.setattr(sessions, "session", running)
    client = use("ring", archive_at_pop="on", subscribers="a,b,c", size="8")
    for _ in range(4):  # by the pushes that use a slot again, and by pops that find nothing
        subscribers_popped(client, 6)
    offered = job.preview(client.database, client.queue, lake, AT_ONCE)
    job.archive(client.database, offered, lake, SparkTasks(spark.sparkContext))
    words = (client.queue.name, "--lake", str(lake.location), "--url", client.url)
    done = call("pipeline", "verify", *words, "--json")
    assert done.status == 0, (done.out, done.err)
    assert [done.json[name] for name in ("pops", "doubled", "overtaken")] == [24, 0, 0]


def test_what_is_not_as_written_stops_on_spark_too(
    spark: "SparkSession", use: Use, lake: Lake
) -> None:
    client = use("fifo", archive_at_pop="on")
    popped(client, 30)

    class Spoiling(SparkTasks):
        def run(self, work: Any, items: Any, *more: Any, **how: Any) -> Any:
            if work == files.verify:
                lake.remove(lake.data_files("archive")[1])
            return super().run(work, items, *more, **how)

    offered = job.preview(client.database, client.queue, lake, AT_ONCE, range_rows=10)
    with pytest.raises(DamagedError, match="1 of 3 ranges"):
        job.archive(client.database, offered, lake, Spoiling(spark.sparkContext))
    assert len(archived_keys(client)) == 30
    (done,) = job.archive(client.database, offered, lake, SparkTasks(spark.sparkContext))
    assert (done.rows["export"], done.deleted) == (10, 30)


def test_a_rollup_is_the_same_on_spark(spark: "SparkSession", tmp_path: Path) -> None:
    late_segments(SparkTasks(spark.sparkContext), tmp_path, long=True)


def test_a_forecast_is_the_same_on_spark(spark: "SparkSession", lake: Lake) -> None:
    seen = weekly.weeks("office hours", "in proportion", 8, 1)
    put(lake, seen)
    found = []
    for tasks in (LocalTasks(), SparkTasks(spark.sparkContext)):
        done = forecast.update(tasks, lake, {"prod": "Europe/Prague"})
        assert done == {"prod": {"known": 1, "too_short": 0}}
        known = read(lake)
        found.append((known.hours, known.zone, known.weeks))
    assert found[0] == found[1]
    assert len(found[0][0]) == 168


def test_the_session_is_quiet_and_of_this_python(spark: "SparkSession") -> None:
    settings = spark.sparkContext.getConf()
    assert settings.get("spark.ui.enabled") == "false"
    assert spark.sparkContext.uiWebUrl is None
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
