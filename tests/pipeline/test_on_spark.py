"""All tests that need a JVM, in one file: see conftest."""

import json
import os
import signal
import socket
import struct
import sys
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest

from console.designs import Order
from console.errors import BusyError, ConsoleError, RefusedError
from console.features.lake import replay as replaying
from console.features.lake import spark as sessions
from console.features.lake.archive import files, job
from console.features.lake.filters import parse_filters
from console.features.lake.lake import DamagedError, Lake
from console.features.lake.spark import Item, SparkTasks
from console.features.lake.table import QueueArchive
from tests.cli.calls import call
from tests.pipeline import weekly
from tests.pipeline.archive_tools import NO_RETENTION, push_and_pop_by_subscribers
from tests.pipeline.conftest import NewQueue
from tests.pipeline.test_forecast_lake import make_forecast, put_rollups, read
from tests.pipeline.test_rollups import check_late_segments
from tests.tools.local_tasks import LocalTasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from console.features.lake.verify import VerifyResult

pytestmark = [
    pytest.mark.long,
    # PySpark does not close the socket through which it sends the items of tasks.
    pytest.mark.filterwarnings("ignore:.*<socket:pytest.PytestUnraisableExceptionWarning"),
]
"""A JVM is too slow for the short tier."""


def double(item: Item) -> dict[str, Any]:
    if item["n"] == 13:
        raise BusyError("13 was kept out.", why="It is 13.", next_step="Take 12.")
    if item["n"] == 14:
        raise DamagedError("14 is damaged.")
    if item["n"] == 15:
        raise ZeroDivisionError("nobody expected 15")
    return {"rows": item["n"], "bytes": 2, "twice": 2 * item["n"], "pid": os.getpid()}


def test_each_item_has_a_task_and_the_results_keep_their_order(spark: "SparkSession") -> None:
    reports: list[tuple[int, int, int, int]] = []
    results = SparkTasks(spark.sparkContext).run(
        double,
        [{"n": n} for n in range(7)],
        lambda *, done, of, rows, size: reports.append((done, of, rows, size)),
    )
    assert [result["twice"] for result in results] == [0, 2, 4, 6, 8, 10, 12]
    assert os.getpid() not in {result["pid"] for result in results}
    assert reports[-1] == (7, 7, 21, 14)
    assert SparkTasks(spark.sparkContext).run(double, []) == []


def rpc_answer(port: int, serialized: bytes) -> bytes:
    """What the driver answers a stranger who sends it a Java object as a message of Spark's RPC."""
    body = b"\0\0" + struct.pack(">H", 8) + b"stranger" + serialized
    head = struct.pack(">bqi", 3, 1, len(body))
    with socket.create_connection(("127.0.0.1", port), timeout=30) as stranger:
        stranger.sendall(struct.pack(">q", 8 + len(head) + len(body)) + head + body)
        answer = b""
        with suppress(OSError):
            while len(answer) < 400 and (part := stranger.recv(4_096)):
                answer += part
    return answer


def test_a_stranger_on_this_machine_gets_nothing_deserialized(spark: "SparkSession") -> None:
    """The port is open to every user of it."""
    name = b"nobody.knows.ThisClass"
    unknown = b"\xac\xed\0\x05sr" + struct.pack(">H", len(name)) + name + bytes(8) + b"\x02\0\0xp"
    conf = spark.sparkContext.getConf()
    answer = rpc_answer(int(conf.get("spark.driver.port") or 0), unknown)
    assert answer
    assert name not in answer, "Java has looked for the class"
    for setting in ("authenticate", "network.crypto.enabled", "io.encryption.enabled"):
        assert conf.get(f"spark.{setting}") == "true"


def test_what_tasks_are_sent_is_in_no_file(
    spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database's password is in it. Without encryption PySpark hands it to Java in a file."""
    context, handed_over = spark.sparkContext, list[bytes]()
    original = type(context)._serialize_to_jvm

    def watched(self: Any, data: Any, serializer: Any, read: Any, serve: Any) -> Any:
        def read_file(name: str) -> Any:
            handed_over.append(Path(name).read_bytes())
            return read(name)

        return original(self, data, serializer, read_file, serve)

    monkeypatch.setattr(type(context), "_serialize_to_jvm", watched)
    SparkTasks(context).run(double, [{"n": 1, "url": "postgresql://u:Pl4ntedC0re@h/db"}])
    assert not any(b"Pl4ntedC0re" in data for data in handed_over)


def count_concurrent(item: Item) -> dict[str, Any]:
    """A task that counts how many are running."""
    folder = Path(item["folder"])
    (mine := folder / str(item["n"])).touch()
    most = max(len([*folder.iterdir()]) for _ in range(2_000))
    mine.unlink()
    return {"rows": 1, "most": most, "n": item["n"]}


def test_at_once_limits_the_number_of_concurrent_tasks(
    spark: "SparkSession", tmp_path: Path
) -> None:
    reports: list[int] = []
    items = [{"folder": str(tmp_path), "n": n} for n in range(6)]
    results = SparkTasks(spark.sparkContext).run(
        count_concurrent, items, lambda *, done, **_: reports.append(done), at_once=1
    )
    assert [(result["n"], result["most"]) for result in results] == [(n, 1) for n in range(6)]
    assert reports[-1] == 6
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
def test_an_error_of_a_task_is_reported_without_a_traceback(
    spark: "SparkSession", n: int, kind: type[ConsoleError], words: str
) -> None:
    with pytest.raises(kind) as error:
        SparkTasks(spark.sparkContext).run(double, [{"n": 1}, {"n": n}])
    assert str(error.value).startswith(words)
    assert "Traceback" not in str(error.value)


def use(spark: "SparkSession", monkeypatch: pytest.MonkeyPatch) -> None:
    """Verbs use this session."""

    @contextmanager
    def running(*_: object) -> Any:
        with sessions._worded():
            yield spark

    monkeypatch.setattr(sessions, "session", running)


def test_the_archive_of_a_ring_with_subscribers_is_a_log_of_pops(
    spark: "SparkSession", new_queue: NewQueue, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(spark, monkeypatch)
    client = new_queue("ring", archive_at_pop="on", subscribers="a,b,c", size="8")
    for _ in range(4):  # archived by pushes that reuse a slot, and by pops that find nothing
        push_and_pop_by_subscribers(client, 6)
    offered = job.find(client.database, client.queue, lake, NO_RETENTION)
    job.archive(client.database, offered, lake, SparkTasks(spark.sparkContext))
    words = (client.queue.name, "--lake", str(lake.location), "--url", client.url)
    done = call("pipeline", "verify", *words, "--json")
    assert done.status == 0, (done.out, done.err)
    assert [done.json[name] for name in ("pops", "doubled", "overtaken")] == [24, 0, 0]


def test_a_rollup_is_the_same_on_spark(spark: "SparkSession", tmp_path: Path) -> None:
    check_late_segments(SparkTasks(spark.sparkContext), tmp_path, long=True)


def test_a_forecast_is_the_same_on_spark(spark: "SparkSession", lake: Lake) -> None:
    counts = weekly.weeks("office hours", "in proportion", 8, 1)
    put_rollups(lake, counts)
    found = []
    for tasks in (LocalTasks(), SparkTasks(spark.sparkContext)):
        assert make_forecast(lake, "Europe/Prague", tasks) == {"known": 1, "too_short": 0}
        known = read(lake)
        found.append((known.hours, known.zone, known.weeks))
    assert found[0] == found[1]
    assert len(found[0][0]) == 168


def test_the_session_has_no_ui_and_uses_this_python(spark: "SparkSession") -> None:
    settings = spark.sparkContext.getConf()
    assert settings.get("spark.ui.enabled") == "false"
    assert spark.sparkContext.uiWebUrl is None
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


# -- verify

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


def log_file(path: Path, log: list[Row]) -> str:
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
    from console.features.lake import verify as verifying  # noqa: PLC0415

    formats = how.pop("formats", ("push.parquet", "pop.parquet"))
    read = [
        verifying.read_log(spark, log_file(folder / name, log))
        for name, log in zip(formats, (pushes, pops), strict=True)
    ]
    return verifying.verify(spark, read[0], read[1], order, **how)


def test_each_kind_of_fault_is_found_and_counted(spark: "SparkSession", tmp_path: Path) -> None:
    pushes, pops = logs()
    pops[20] |= {"at": at(100 + 30.5)}  # after ten that were pushed later
    pops[5] |= {"checksum": "other"}
    pops[7] |= {"id": "nobody"}  # so m7 is lost
    pops += [{**pops[3], "at": at(103.5)}, {**pops[3], "at": at(103.7)}]
    pushes[39] |= {"due_at": at(1000)}
    formats = ("push.csv", "pop.jsonl")
    verify_result = verified(spark, tmp_path, pushes, pops, Order.STRICT, formats=formats)
    counts = (
        verify_result.lost,
        verify_result.doubled,
        verify_result.unknown,
        verify_result.damaged,
        verify_result.early,
    )
    assert counts == (1, 2, 1, 1, 1)
    assert (
        verify_result.pushes,
        verify_result.pops,
        verify_result.overtaken,
        verify_result.farthest,
    ) == (40, 42, 1, 10)
    assert verify_result.broken == ["lost", "doubled", "unknown", "damaged", "overtaken"]
    assert verify_result.examples["lost"] == ["m7"]
    assert verify_result.examples["overtaken"] == ["m20"]
    assert verify_result.as_json()["ok"] is False
    lax = replace(verify_result, order=Order.LAX.value)
    assert lax.broken == ["lost", "doubled", "unknown", "damaged"]
    assert replace(verify_result, order=Order.DUE.value).broken == [*lax.broken, "early"]


def test_a_clean_log_has_no_fault_in_any_order(
    spark: "SparkSession", tmp_path: Path, long: bool
) -> None:
    for order in Order if long else [Order.STRICT]:
        verify_result = verified(spark, tmp_path, *logs(), order)
        assert (verify_result.as_json()["ok"], verify_result.lost, verify_result.examples) == (
            True,
            0,
            {},
        )
    pushes, pops = logs()
    assert not verified(spark, tmp_path, pushes, pops[:-1], Order.NONE, left=1).broken


def test_the_archive_is_a_log_of_pops(spark: "SparkSession", tmp_path: Path) -> None:
    from console.features.lake import verify as verifying  # noqa: PLC0415

    blank = {"payload": "", "state": "done", "attempts": 0, "reason": "pop"}
    archived: list[Row] = [
        {**blank, "archive_id": n, "id": str(n), "pushed_at": at(n), "done_at": at(50)}
        for n in range(6)
    ]
    archived[2]["archive_id"], archived[3]["archive_id"] = 3, 2  # 2 came after 3
    archived[5]["reason"] = "purge"
    again = {"archive_id": 9, "id": "0", "pushed_at": at(500), "done_at": at(600)}
    archived.append({**blank, **again})  # the queue was reinstalled: no inversion, no double
    table = pa.Table.from_pylist(archived, schema=files.SCHEMA)
    pq.write_table(table, tmp_path / "a.parquet")  # type: ignore[no-untyped-call]
    log = verifying.pops_of_archive(spark.read.parquet(str(tmp_path)))
    verify_result = verifying.verify(spark, None, log, Order.STRICT)
    assert (
        verify_result.pops,
        verify_result.doubled,
        verify_result.overtaken,
        verify_result.lost,
    ) == (6, 0, 1, None)
    assert verify_result.broken == ["overtaken"]


def test_copies_of_a_librarys_jobs_are_not_replayed(
    spark: "SparkSession", new_queue: NewQueue, lake: Lake
) -> None:
    source = QueueArchive("elsewhere", "public", "oban", "", ())
    columns = "kind string, payload string, archived_at timestamp, reason string"
    rows = spark.createDataFrame([["json", "{}", at(0), "copy"]], columns)
    with pytest.raises(RefusedError, match="copies of another library's jobs"):
        replaying.find(new_queue("fifo").queue, lake, source, (), rows)


def test_the_filters_of_a_replay_select_archived_messages(spark: "SparkSession") -> None:
    from console.features.lake import frames as selection  # noqa: PLC0415

    blank: Row = {
        "kind": "text",
        "payload": "x",
        "payload_bytes": None,
        "pushed_at": at(0),
        "more": None,
    }
    blank |= {"attempts": 1, "title": None, "due_at": None}
    made: list[Row] = [
        {**blank, "archive_id": n, "id": str(n), "archived_at": at(n), "done_at": None}
        | {"state": "error", "error": f"time-out {n % 2}", "reason": "ticket 7", "title": "a"}
        for n in (3, 1, 2)
    ]
    made.append(made[0] | {"archive_id": 4, "id": "4", "state": "ready", "reason": "pop"})
    made.append(made[0] | {"archive_id": 10, "id": "10", "state": "done", "done_at": at(9)})
    made[-1] |= {"payload": None, "payload_bytes": b"\xff", "reason": None}
    no_time = made[0] | {
        "archive_id": 11,
        "archived_at": None,
        "more": '{"archived_at": "-infinity"}',
    }
    no_time |= {"id": "11", "payload": None, "payload_bytes": "Grüße".encode("utf-16-be")}
    made.append(no_time)
    names = list(selection._COLUMNS)
    values = [[row[name] for name in names] for row in made]
    table = spark.createDataFrame(
        values, ", ".join(f"{name} {kind}" for name, kind in selection._COLUMNS.items())
    )

    def selected(*words: str) -> list[str]:
        frame = selection.matching(table, parse_filters(words))
        return [
            row["message"].split()[0]
            for row in selection.in_archive_order(selection.with_message_key(frame)).collect()
        ]

    assert selected() == ["a1", "a2", "a3", "a11"]
    assert selected("payload~rüß") == ["a11"]
    assert selected("until=2026-01-01T00:00:02") == ["a1", "a11"]
    keys = selection.with_message_key(table.where("archive_id = 11")).collect()
    assert [row["message"] for row in keys] == ["a11 -infinity"]
    assert selected("id=3", "id=1", "id=4") == ["a1", "a3"]
    assert selected("error~out 1", "title~a") == ["a1", "a3", "a11"]
    assert selected("reason=pop") == ["a4"]
    assert selected("state=done") == ["a10"]
    assert selected("since=2026-01-01T00:00:02", "until=2026-01-01T01:00:03+01:00") == ["a2"]


# -- what fails


def killed_once(item: Item) -> dict[str, Any]:
    """As if the system had killed its worker for its memory, the first time."""
    mark = Path(item["mark"])
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return {"pid": os.getpid()}


def test_a_task_whose_worker_was_killed_is_tried_again(
    spark: "SparkSession", tmp_path: Path
) -> None:
    items = [{"mark": str(tmp_path / "mark")}]
    (done,) = SparkTasks(spark.sparkContext).run(killed_once, items)
    assert done["pid"]


@pytest.mark.parametrize("damage", ["cut", "removed", "text"])
def test_a_log_that_spark_cannot_read_is_reported_as_a_file(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    """Also where that is only seen when the DataFrame is carried out. Exit 3: 1 is a broken
    promise."""
    use(spark, monkeypatch)
    pushes, pops = logs()
    push = Path(log_file(tmp_path / "push.parquet", pushes))
    pop = Path(log_file(tmp_path / "pops.jsonl", pops))
    if damage == "cut":
        push.write_bytes(push.read_bytes()[:-20])
    elif damage == "removed":
        push = tmp_path / "gone.parquet"
    else:
        pop.write_text(pop.read_text() + '{"id": "half')
    words = ("--push-log", str(push), "--pop-log", str(pop), "--order", "strict")
    found = call("pipeline", "verify", *words)
    assert found.status == (2 if damage == "removed" else 3), found.err
    assert "Traceback" not in found.err
    assert (push if damage != "text" else pop).name in found.err


def test_the_functions_of_verify_are_of_dataframes(spark: "SparkSession") -> None:
    from pyspark.testing import assertDataFrameEqual  # noqa: PLC0415  # the extra's

    from console.features.lake import verify as verifying  # noqa: PLC0415

    pushes = spark.createDataFrame([("a", 1, "x"), ("b", 2, "y")], "id string, n int, c string")
    times = ("timestamp(null) at", "timestamp(null) due_at", "c checksum")
    pushes = pushes.selectExpr("id", "bigint(n) number", *times)
    pops = spark.createDataFrame([("a", "z"), ("a", "x"), ("c", "x")], "id string, c string")
    pops = pops.selectExpr("id", "bigint(null) number", *times)
    messages = verifying.together(pushes, pops)
    wrong = verifying._wrong()
    assertDataFrameEqual(
        messages.select("id", *[column.cast("int").alias(name) for name, column in wrong.items()]),
        spark.createDataFrame(
            [("a", 0, 1, 0, 1, 0), ("b", 1, 0, 0, 0, 0), ("c", 0, 0, 1, 0, 0)],
            "id string, lost int, doubled int, unknown int, damaged int, early int",
        ),
        ignoreNullable=True,
    )
