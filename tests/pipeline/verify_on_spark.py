"""`pipeline verify` on Spark; `test_on_spark.py` imports these tests."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq

from console.designs import Order
from console.pipeline.archive import files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from console.pipeline.verify import VerifyResult

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
Row = dict[str, Any]


def at(seconds: float) -> datetime:
    return BEGIN + timedelta(seconds=seconds)


def logs(count: int = 40) -> tuple[list[Row], list[Row]]:
    """Every message pushed and popped once, in order."""
    pushes = [
        {"id": f"m{n}", "number": n, "at": at(n), "due_at": at(n), "checksum": f"c{n}"}
        for n in range(count)
    ]
    pops = [{"id": f"m{n}", "at": at(100 + n), "checksum": f"c{n}"} for n in range(count)]
    return pushes, pops


SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("number", pa.int64()),
        ("at", pa.timestamp("us", "UTC")),
        ("due_at", pa.timestamp("us", "UTC")),
        ("checksum", pa.string()),
    ]
)


def put(path: Path, log: list[Row]) -> str:
    """A log in the format of its name."""
    table = pa.Table.from_pylist(log, schema=SCHEMA)
    if path.suffix == ".csv":
        pc.write_csv(table, path)  # type: ignore[attr-defined]
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row, default=str) + "\n" for row in log))
    else:
        pq.write_table(table, path)  # type: ignore[no-untyped-call]
    return str(path)


def verified(
    spark: "SparkSession",
    folder: Path,
    pushes: list[Row],
    pops: list[Row],
    order: Order,
    **how: Any,
) -> "VerifyResult":
    from console.pipeline import verify as job  # noqa: PLC0415

    formats = how.pop("formats", ("push.parquet", "pop.parquet"))
    read = [
        job.read_log(spark, put(folder / name, log))
        for name, log in zip(formats, (pushes, pops), strict=True)
    ]
    return job.verify(spark, read[0], read[1], order, **how)


def test_each_wrong_is_found_and_counted(spark: "SparkSession", tmp_path: Path) -> None:
    pushes, pops = logs()
    pops[20] |= {"at": at(100 + 30.5)}  # after ten that were pushed later
    pops[5] |= {"checksum": "other"}
    pops[7] |= {"id": "nobody"}  # so m7 is lost
    pops += [{**pops[3], "at": at(103.5)}, {**pops[3], "at": at(103.7)}]
    pushes[39] |= {"due_at": at(1000)}
    formats = ("push.csv", "pop.jsonl")
    found = verified(spark, tmp_path, pushes, pops, Order.STRICT, formats=formats)
    counts = (found.lost, found.doubled, found.unknown, found.damaged, found.early)
    assert counts == (1, 2, 1, 1, 1)
    assert (found.pushes, found.pops, found.overtaken, found.farthest) == (40, 42, 1, 10)
    assert found.broken == ["lost", "doubled", "unknown", "damaged", "overtaken"]
    assert found.examples["lost"] == ["m7"]
    assert found.examples["overtaken"] == ["m20"]
    assert found.as_json()["ok"] is False
    lax = replace(found, order=Order.LAX.value)
    assert lax.broken == ["lost", "doubled", "unknown", "damaged"]
    assert replace(found, order=Order.DUE.value).broken == [*lax.broken, "early"]


def test_a_clean_log_is_as_promised(spark: "SparkSession", tmp_path: Path, long: bool) -> None:
    for order in Order if long else [Order.STRICT]:
        found = verified(spark, tmp_path, *logs(), order)
        assert (found.as_json()["ok"], found.lost, found.examples) == (True, 0, {})
    pushes, pops = logs()
    assert not verified(spark, tmp_path, pushes, pops[:-1], Order.NONE, left=1).broken


def test_the_archive_is_a_log_of_pops(spark: "SparkSession", tmp_path: Path) -> None:
    from console.pipeline import verify as job  # noqa: PLC0415

    blank = {"payload": b"", "state": "done", "attempts": 0, "reason": "pop"}
    archived: list[Row] = [
        {**blank, "archive_id": n, "id": str(n), "pushed_at": at(n), "done_at": at(50)}
        for n in range(6)
    ]
    archived[2]["archive_id"], archived[3]["archive_id"] = 3, 2  # 2 came after 3
    archived[5]["reason"] = "purge"
    again = {"archive_id": 9, "id": "0", "pushed_at": at(500), "done_at": at(600)}
    archived.append({**blank, **again})  # the queue was installed anew: no inversion, no double
    table = pa.Table.from_pylist(archived, schema=files.SCHEMA)
    pq.write_table(table, tmp_path / "a.parquet")  # type: ignore[no-untyped-call]
    log = job.pops_of_archive(spark.read.parquet(str(tmp_path)))
    found = job.verify(spark, None, log, Order.STRICT)
    assert (found.pops, found.doubled, found.overtaken, found.lost) == (6, 0, 1, None)
    assert found.broken == ["overtaken"]


def test_a_replay_means_what_its_filters_say(spark: "SparkSession") -> None:
    from console.pipeline import frames as selection  # noqa: PLC0415

    blank = {"payload": b"x", "pushed_at": at(0), "attempts": 1, "title": None, "due_at": None}
    made: list[Row] = [
        {**blank, "archive_id": n, "id": str(n), "archived_at": at(n), "done_at": None}
        | {"state": "error", "error": f"time-out {n % 2}", "reason": "ticket 7", "title": "a"}
        for n in (3, 1, 2)
    ]
    made.append(made[0] | {"archive_id": 4, "id": "4", "state": "ready", "reason": "pop"})
    made.append(made[0] | {"archive_id": None, "id": "10", "state": "done", "done_at": at(9)})
    made[-1] |= {"archived_at": None, "reason": None}
    names = files.SCHEMA.names
    values = [[row[name] for name in names] for row in made]
    table = spark.createDataFrame(
        values, ", ".join(f"{name} {of}" for name, of in selection._COLUMNS.items())
    )

    def meant(*words: str) -> list[str]:
        found = selection.matching(table, selection.parse_filters(words))
        return [
            row["message"].split()[0]
            for row in selection.in_archive_order(selection.with_message_key(found)).collect()
        ]

    assert meant() == ["a1", "a2", "a3"]
    assert meant("id=3", "id=1", "id=4") == ["a1", "a3"]
    assert meant("error~out 1", "title~a") == ["a1", "a3"]
    assert meant("reason=pop") == ["a4"]
    assert meant("state=done") == ["i10"]
    assert meant("since=2026-01-01T00:00:02", "until=2026-01-01T01:00:03+01:00") == ["a2"]
