"""The rollup's tables, with its tasks in this process."""

import json
import math
import shutil
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from console.errors import RefusedError, UsageError
from console.features.history import rollup_files, segments
from console.features.history.points import history
from console.features.history.segments import FINDINGS, SAMPLES, WAITS, TimeRange
from console.features.lake.lake import DamagedError, Lake
from console.features.lake.rollup import day, job, segment_files, tables
from console.features.lake.rollup.table import RollupTable
from console.features.lake.spark import Tasks
from tests.pipeline.recorded import BEGIN, all_rows, sample, write
from tests.tools.local_tasks import LocalTasks

Row = dict[str, Any]


def table_of(kind: str, rows: Sequence[Row]) -> pa.Table:
    """Recorded rows as the functions of `tables` take them."""
    complete = [{"source": 0, **row} for row in rows]
    return pa.Table.from_pylist(complete, segment_files.schema(kind))


def minutes_of(kind: str, rows: Sequence[Row]) -> pa.Table:
    table = table_of(kind, rows)
    times = day._SampleDurations([]).microseconds(table) if kind == "samples" else None
    return tables.minutes(kind, table, times)


def collected(table: pa.Table) -> list[Row]:
    rows: list[Row] = table.to_pylist()
    return [
        {**row, "latency_sketch": dict(row["latency_sketch"])} if "latency_sketch" in row else row
        for row in rows
    ]


def latency(number: int) -> float:
    """Artificial, of all magnitudes."""
    return float(10 ** ((number * 7919 % 1000) / 250 - 3))


def test_samples_are_rolled_up_into_minutes_hours_and_days() -> None:
    rows: list[Row] = []
    for number in range(400):  # 10 s apart, so an hour and a bit
        figures = {"ready": number % 50, "push_per_second": float(number % 7)}
        rows.append(sample(number * 10, latency_seconds=latency(number), **figures))
    rows[5] |= {"ready": None, "push_per_second": math.inf, "problem": "no rights"}
    del rows[100:120]  # 200 s without a sample
    # Another console, less often: its samples, and its peak, count only in minutes without others.
    for number in range(0, 400, 5):
        other = sample(number * 10 + 3, ready=999 if number == 200 else 1, latency_seconds=1e3)
        rows.append({**other, "source": 1, "push_per_second": 1e6})

    minute = minutes_of("samples", rows)
    by_begin = {row["begin"]: row for row in collected(minute)}
    first = by_begin[BEGIN]
    assert (first["samples"], first["sources"], first["problems"]) == (6, 2, 1)
    assert (first["ready_weight"], first["ready_total"], first["ready_max"]) == (5, 10, 4)
    assert (first["push_per_second_weight"], first["push_per_second_avg"]) == (50_000_000, 2.0)
    assert first["gap_max"] is None
    assert first["gap_avg"] is None

    mine = [row for row in rows if not row.get("source")]
    for width in ("hour", "day"):
        table = tables.wider("samples", minute, width)
        for row in collected(table):
            length = timedelta(seconds=rollup_files.WIDTHS[width])
            _check_wide(row, [r for r in mine if row["begin"] <= r["at"] < row["begin"] + length])
        if width == "day":
            hours = tables.wider("samples", minute, "hour")
            assert collected(tables.wider("samples", hours, "day")) == collected(table)


def _check_wide(row: Row, samples: Sequence[Row]) -> None:
    """Compares a row with the samples; `alone` are minutes that only the other console sampled."""
    minutes = {sample["at"].replace(second=0) for sample in samples}
    alone = row["samples"] - len(samples)
    assert 0 <= alone <= 4, (alone, len(minutes))
    ready = [sample["ready"] for sample in samples if sample["ready"] is not None]
    assert row["ready_total"] == sum(ready) + alone
    assert row["ready_weight"] == len(ready) + alone
    own = sorted([sample["latency_seconds"] for sample in samples] + [1e3] * alone)
    assert sum(row["latency_sketch"].values()) == len(own)
    for percent in rollup_files.PERCENTILES:
        exact = own[max(1, math.ceil(percent * len(own) / 100)) - 1]
        found = row[f"latency_seconds_p{percent}"]
        assert abs(found - exact) <= rollup_files.RELATIVE_ERROR * exact * (1 + 1e-9)


def test_rates_are_weighted_by_their_duration() -> None:
    # 100/s over 30 s, then 10/s over 10 s; the first sample lasts as long as the next one.
    rows = [(0, 100.0), (30, 100.0), (40, 10.0), (40 + 3600, 7.0)]
    one, other = collected(
        minutes_of("samples", [sample(at, pop_per_second=rate) for at, rate in rows])
    )
    assert one["pop_per_second_avg"] == (100 * 60 + 10 * 10) / 70
    # No sample for an hour: the next rate is not that of the hour.
    assert other["pop_per_second_weight"] == rollup_files.LONGEST_SAMPLE_SECONDS * 1_000_000


def record_two_consoles(root: Path) -> None:
    """Record samples of two consoles over the end of an hour, a segment each 3 minutes."""
    rare = {"queue": "rare", "push_per_second": 3.0, "latency_seconds": 0.5}
    for source in (0, 1):
        for begin in range(2880, 4320, 180):
            times = range(begin + source, begin + 180, 30)
            rows = [sample(at, push_per_second=float(at % 7)) for at in times]
            # Its first sample is the last of a segment, and the next one is in another.
            rows += [sample(times[-1], **rare)] * (begin >= 3060)
            write(root, SAMPLES, *rows)
            if begin % 360 == 0:
                one = {"schema": "public", "queue": "orders"}
                records = [{**one, "at": row["at"], "summary": f"{begin}"} for row in rows]
                write(
                    root, FINDINGS, *records[:2], *({**row, "code": "hole"} for row in records[2:])
                )
                write(root, WAITS, *({**row, "wait": "read", "sessions": 1} for row in records))


def test_the_number_of_rows_rolled_up_at_a_time_makes_no_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_two_consoles(tmp_path / "recordings")
    found = []
    for rows in (1, 100_000):
        monkeypatch.setattr(day, "_ROWS", rows)
        lake = Lake(tmp_path / f"lake {rows}")
        job.rollup(lambda: nullcontext(LocalTasks()), lake, [str(tmp_path / "recordings")])
        found.append(all_rows(lake))
    assert found[0] == found[1]
    minutes = found[0]["prod", str(BEGIN.date()), "samples", "minute"]
    first = next(row for row in minutes if row["queue"] == "rare")
    assert (first["sources"], first["push_per_second_weight"]) == (2, 180_000_000)


def test_findings_and_waits_are_counted_once() -> None:
    found: list[Row] = []
    waits: list[Row] = []
    for source in (0, 1):  # the same, sampled by two
        for number in range(4):
            at = BEGIN + timedelta(seconds=number * 60 + source)
            one = {"at": at, "schema": "public", "queue": "orders", "source": source}
            found.append(
                {**one, "code": "hole" if number in (1, 2) else None, "summary": f"{number}"}
            )
            waits.append({**one, "kind": "Lock", "wait": "tuple", "sessions": number})
            waits.append({"at": at, "source": source, "kind": "IO", "wait": "read", "sessions": 2})
    minute = minutes_of("findings", found)
    hour = collected(tables.wider("findings", minute, "hour"))
    assert [(r["code"], r["samples"], r["examinations"]) for r in hour] == [
        ("", 2, 4),
        ("hole", 2, 4),
    ]
    hole = hour[1]
    times = (BEGIN + timedelta(seconds=at) for at in (60, 121))
    assert (hole["first_at"], hole["last_at"]) == tuple(times)
    assert hole["summary"] == "2"
    table = tables.wider("waits", minutes_of("waits", waits), "day")
    by_wait = {
        r["wait"]: (r["queue"], r["samples"], r["sessions_total"], r["sessions_max"])
        for r in collected(table)
    }
    assert by_wait == {"tuple": ("orders", 4, 6, 3), "read": ("", 4, 8, 2)}


def test_a_rollup_can_be_repeated_and_includes_late_segments(tmp_path: Path, long: bool) -> None:
    check_late_segments(LocalTasks(), tmp_path, long=long)


def check_late_segments(tasks: Tasks, tmp_path: Path, *, long: bool) -> None:
    """On Spark as well: see `test_on_spark.py`."""
    path, other, lake = tmp_path / "one", tmp_path / "o t%her", Lake(tmp_path / "the lake")
    connection = "prod/eu 1%"

    def rows(hour: int, count: int) -> list[Row]:
        start = hour * 3600
        return [sample(start + at * 20, ready=at, latency_seconds=0.01) for at in range(count)]

    def run(days: job.Days | None = None, *folders: Path) -> Row:
        paths = [str(folder) for folder in folders or (path,)]
        result = job.rollup(lambda: nullcontext(tasks), lake, paths, days)
        answer: Row = json.loads(json.dumps(result.as_json()))
        return answer

    write(path, SAMPLES, *rows(1, 9), connection=connection)
    write(path, SAMPLES, *rows(25, 9), connection=connection)
    finding = {"schema": "public", "queue": "orders", "code": "hole", "at": BEGIN}
    write(path, FINDINGS, finding, connection=connection)
    write(
        path,
        WAITS,
        {"at": BEGIN, "kind": "IO", "wait": "read", "sessions": 1},
        connection=connection,
    )
    answer = run()
    assert answer["days"] == {connection: ["2026-03-28", "2026-03-29"]}
    assert answer["rows"] == {"samples": 18, "findings": 1, "waits": 1}
    assert answer["tables"]["hour"] == {"samples": 2, "findings": 1, "waits": 1}
    assert answer["percentiles"]["relative_error"] == 0.01
    before = all_rows(lake)
    assert len(before) == 14  # segments of 2 days, 3 widths of samples of 2, of others of one

    assert run()["days"] == {}
    assert all_rows(lake) == before
    if long:
        # Only the first day, again: the same; the files of the other stay.
        second = files_of(lake, "2026-03-29")
        answer = run(job.Days(BEGIN.date(), BEGIN.date()))
        assert answer["days"] == {connection: ["2026-03-28"]}
        assert all_rows(lake) == before
        assert files_of(lake, "2026-03-29") == second

    # A late segment of another console, in the same minutes and after: only its day is rolled up.
    write(other, SAMPLES, *rows(25, 12), connection=connection)
    (bad,) = list(other.rglob("*.parquet"))
    bad.with_name("damaged.parquet").write_bytes(b"PAR1")
    answer = run(None, path, other)
    assert answer["days"] == {connection: ["2026-03-29"]}
    assert answer["skipped"] == {"damaged": 1, "newer": 0}
    after = all_rows(lake)
    hour = (connection, "2026-03-29", "samples", "hour")
    (was,), (now,) = before.pop(hour), after.pop(hour)
    assert (was["samples"], now["samples"], now["ready_max"]) == (9, 12, 11)
    assert {k: v for k, v in after.items() if "2026-03-28" in k} == {
        k: v for k, v in before.items() if "2026-03-28" in k
    }
    assert run(None, path, other)["days"] == {}

    check_relative_error(lake, *hour)

    # The recordings are gone; the console still shows the hour, by its minutes.
    span = TimeRange(BEGIN, BEGIN + timedelta(days=2))
    shown = history(tmp_path / "gone", connection, "orders", span, lake=str(tmp_path / "the lake"))
    assert shown.tables == ("minute",)
    assert [point.samples for point in shown.points] == [3, 3, 3, 3, 3, 3, 3]
    assert shown.points[0]["latency_seconds"] == 0.01


def files_of(lake: Lake, date: str, *rest: str) -> list[str]:
    table = RollupTable.open(lake)
    assert table is not None
    wanted = {date, *rest}
    return [file.path for file in table.entries() if wanted <= set(file.partition.values())]


def check_relative_error(lake: Lake, *partition: str) -> None:
    """The columns of percentiles state their relative error."""
    (path,) = files_of(lake, *partition)
    fields = pq.read_schema(lake.path(path))  # type: ignore[no-untyped-call]
    metadata = {
        field.name: field.metadata for field in fields if b"gamma" in (field.metadata or {})
    }
    assert set(metadata) == {
        "latency_sketch",
        *(f"latency_seconds_p{n}" for n in rollup_files.PERCENTILES),
    }
    assert {metadatum[b"relative_error"] for metadatum in metadata.values()} == {b"0.01"}


def roll_up(lake: Lake, folder: Path, tasks: Tasks | None = None) -> job.RollupResult:
    return job.rollup(lambda: nullcontext(tasks or LocalTasks()), lake, [str(folder)])


def test_a_day_whose_segments_are_not_known_is_not_replaced(tmp_path: Path) -> None:
    """Recordings that it was made from may have been deleted since."""
    folder, lake = tmp_path / "recordings", Lake(tmp_path / "lake")
    write(folder, SAMPLES, *(sample(at) for at in range(0, 60, 10)))
    roll_up(lake, folder)
    before = all_rows(lake)
    (path,) = files_of(lake, str(BEGIN.date()), "segments")
    kept = Path(lake.path(path)).read_bytes()
    for damage in (lambda one: one.write_bytes(kept[:20]), Path.unlink):
        damage(Path(lake.path(path)))
        with pytest.raises(DamagedError, match=path) as error:
            roll_up(lake, folder)
        assert error.value.next_step
    Path(lake.path(path)).write_bytes(kept)
    assert all_rows(lake) == before
    assert not roll_up(lake, folder).selection.due


def test_a_segment_that_is_damaged_in_its_middle_since_keeps_the_day(tmp_path: Path) -> None:
    folder, lake = tmp_path / "recordings", Lake(tmp_path / "lake")
    write(folder, SAMPLES, *(sample(at) for at in range(200)))
    roll_up(lake, folder)
    before = all_rows(lake)
    (path,) = folder.rglob("*.parquet")
    path.write_bytes(path.read_bytes().replace(path.read_bytes()[4:400], b"\xff" * 396))
    write(folder, SAMPLES, sample(300))
    result = roll_up(lake, folder)
    assert (result.selection.due, len(result.selection.kept)) == ([], 1)
    assert all_rows(lake) == before


class Between(LocalTasks):
    """Does something between the tasks and the commit."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work

    def run(self, *args: Any, **more: Any) -> list[dict[str, Any]]:
        done = super().run(*args, **more)
        self._work()
        return done


def test_of_two_rollups_at_once_one_commits(tmp_path: Path) -> None:
    """The other is told so: on a new day as on one that is there already."""
    folder, lake = tmp_path / "recordings", Lake(tmp_path / "lake")
    for at in (0, 60):
        write(folder, SAMPLES, sample(at))
        with pytest.raises(RefusedError, match="Another run changed") as error:
            roll_up(lake, folder, Between(lambda: roll_up(lake, folder)))
        assert "Run it again" in error.value.next_step
        minutes = all_rows(lake)["prod", str(BEGIN.date()), "samples", "minute"]
        assert [row["samples"] for row in minutes] == [1] * (at // 60 + 1)
        assert not roll_up(lake, folder).selection.due


def test_a_run_that_is_killed_before_its_commit_changes_nothing(tmp_path: Path) -> None:
    folder, lake = tmp_path / "recordings", Lake(tmp_path / "lake")
    write(folder, SAMPLES, sample(0))
    roll_up(lake, folder)
    before = all_rows(lake)
    write(folder, SAMPLES, sample(60))
    with pytest.raises(ZeroDivisionError):
        roll_up(lake, folder, Between(lambda: 1 // 0))
    assert all_rows(lake) == before
    roll_up(lake, folder)
    assert len(all_rows(lake)["prod", str(BEGIN.date()), "samples", "minute"]) == 2


def test_rollups_of_an_older_console_are_refused_with_the_next_step(tmp_path: Path) -> None:
    folder, lake = tmp_path / "recordings", Lake(tmp_path / "lake")
    write(folder, SAMPLES, sample(0))
    lake.write_json("_manifests/rollup/connection=prod/date=2026-03-28.json", {})
    with pytest.raises(UsageError, match="rollups of an older console") as error:
        roll_up(lake, folder)
    assert "Remove its folders" in error.value.next_step


def test_the_rollups_are_read_by_other_programs(tmp_path: Path) -> None:
    folder, lake = tmp_path / "recordings", Lake(tmp_path / "lake")
    write(folder, SAMPLES, *(sample(at, ready=at) for at in (0, 60, 3600)))
    write(folder, WAITS, {"at": BEGIN, "kind": "IO", "wait": "read", "sessions": 1})
    roll_up(lake, folder)
    hours = pl.scan_delta(lake.path("rollup")).filter(
        (pl.col("kind") == "samples") & (pl.col("width") == "hour")
    )
    assert hours.select("begin", "ready_max").sort("begin").collect().rows() == [
        (BEGIN, 60),
        (BEGIN + timedelta(hours=1), 3600),
    ]
    rollups = DeltaTable(lake.path("rollup")).to_pyarrow_dataset()
    with duckdb.connect() as reader:
        connection = reader.register("rollups", rollups).execute(
            "SELECT wait_kind, wait, sessions_max FROM rollups "
            "WHERE kind = 'waits' AND width = 'day'"
        )
        assert connection.fetchall() == [("IO", "read", 1)]


def test_rollups_of_two_connections_at_once_both_commit(tmp_path: Path) -> None:
    lake, folders = Lake(tmp_path / "lake"), [tmp_path / name for name in ("one", "other")]
    for folder in folders:
        write(folder, SAMPLES, sample(0), connection=folder.name)
    roll_up(lake, folders[0], Between(lambda: roll_up(lake, folders[1])))
    assert {connection for connection, *_ in all_rows(lake)} == {"one", "other"}


def test_a_rollup_of_merged_segments_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are no new segments, and a copy of them from before counts once."""
    monkeypatch.setattr(day, "_ROWS", 10)
    folder, lake = tmp_path / "recordings", Lake(tmp_path / "lake")
    for begin in range(0, 3600, 300):
        rows = [
            sample(at, ready=at, push_per_second=float(at % 7), queue=name)
            for at in range(begin, begin + 300, 20)
            for name in ("orders", "mail", "ü")
        ]
        write(folder, SAMPLES, *rows)
        write(folder, WAITS, *({"at": row["at"], "wait": "w", "queue": None} for row in rows[::3]))
    roll_up(lake, folder)
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    segments.merge(folder, "prod", BEGIN.date() + timedelta(days=1))
    assert len(list(folder.rglob("*.parquet"))) == 2
    assert len(roll_up(lake, folder).selection.unchanged) == 1
    before = all_rows(lake)
    for number, folders in enumerate(([folder], [folder, copy], [copy, folder])):
        again = Lake(tmp_path / f"lake {number}")
        job.rollup(lambda: nullcontext(LocalTasks()), again, [str(path) for path in folders])
        found = all_rows(again)
        assert found.keys() == before.keys()
        for key, rows in before.items():
            assert sorted(map(str, found[key])) == sorted(map(str, rows))
