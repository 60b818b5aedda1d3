"""The table of messages, as others read it: each way that `help pipeline` shows."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import duckdb
import polars as pl
import pytest
from deltalake import DeltaTable

from console.features.lake.archive import export
from console.features.lake.lake import Lake
from console.features.lake.maintenance import compact
from console.features.lake.table import queue_value
from tests.contract.client import Client
from tests.pipeline.archive_tools import NO_RETENTION, push_and_pop, rows_in_lake, run
from tests.pipeline.conftest import NewQueue
from tests.tools.local_tasks import LocalTasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def with_duckdb(path: str, queue: str) -> list[Any]:
    messages = DeltaTable(path).to_pyarrow_dataset()
    query = "SELECT payload FROM messages WHERE queue = $queue"
    with duckdb.connect() as connection:
        connection.register("messages", messages)
        return [row[0] for row in connection.execute(query, {"queue": queue}).fetchall()]


def with_polars(path: str, queue: str) -> list[Any]:
    frame = pl.scan_delta(path).filter(pl.col("queue") == queue).collect()
    return frame["payload"].to_list()


def with_pandas(path: str, queue: str) -> list[Any]:
    found = DeltaTable(path).to_pandas(filters=[("queue", "=", queue)])
    return list(found["payload"])


def in_any_file(path: str, _: str) -> list[Any]:
    """A bare glob: not what is in the table."""
    query = "SELECT payload FROM read_parquet($files, hive_partitioning = false)"
    with duckdb.connect() as connection:
        rows = connection.execute(query, {"files": f"{path}/connection=*/**/*.parquet"}).fetchall()
    return [row[0] for row in rows]


def prepared(new_queue: NewQueue, lake: Lake) -> tuple[Client, list[str]]:
    """Two queues in the lake, and files of a try that no commit names."""

    class TwiceTasks(LocalTasks):
        def run(self, work: Any, items: Any, *more: Any, **how: Any) -> Any:
            if work == export.export:
                super().run(work, items)
            return super().run(work, items, *more, **how)

    other, client = (new_queue("fifo", archive_at_pop="on") for _ in range(2))
    push_and_pop(other, 4)
    sent = push_and_pop(client, 7)
    run(other, lake)
    run(client, lake, NO_RETENTION, TwiceTasks())
    return client, sent


@pytest.mark.parametrize("merged", [False, True])
def test_readers_find_rows_by_any_column(new_queue: NewQueue, lake: Lake, *, merged: bool) -> None:
    """If a commit says the least and greatest of some columns, Arrow finds nothing by others."""
    prepared(new_queue, lake)
    if merged:
        compact.compact(compact.find(lake, 0.0))
    path = lake.path("messages")
    (one, *_) = rows_in_lake(lake)
    messages = DeltaTable(path).to_pyarrow_dataset()
    columns = ("archive_id", "id", "payload", "state", "reason", "archived_at", "kind")
    for name in columns:
        with duckdb.connect() as connection:
            connection.register("messages", messages)
            query = f"SELECT count(*) FROM messages WHERE {name} = $value AND queue = $queue"
            values = {"value": one[name], "queue": one["queue"]}
            (found,) = connection.execute(query, values).fetchall()
        assert found[0] > 0, name
        pandas = DeltaTable(path).to_pandas(filters=[(name, "=", one[name])])
        assert len(pandas) > 0, name
        assert pl.scan_delta(path).filter(pl.col(name) == one[name]).collect().height > 0, name


@pytest.mark.parametrize("read", [with_duckdb, with_polars, with_pandas])
def test_readers_find_each_message_of_a_queue_once(
    new_queue: NewQueue, lake: Lake, read: Callable[[str, str], list[Any]]
) -> None:
    client, sent = prepared(new_queue, lake)
    queue = queue_value(client.queue.schema, client.queue.name)
    assert sorted(read(lake.path("messages"), queue)) == sorted(sent)


def test_a_glob_counts_what_was_not_committed_until_it_is_vacuumed(
    new_queue: NewQueue, lake: Lake
) -> None:
    prepared(new_queue, lake)
    path = lake.path("messages")
    assert len(in_any_file(path, "")) == 4 + 2 * 7
    DeltaTable(path).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    assert len(in_any_file(path, "")) == 4 + 7


@pytest.mark.long
def test_spark_without_jars_reads_the_files_of_the_table(
    spark: "SparkSession", new_queue: NewQueue, lake: Lake
) -> None:
    _, sent = prepared(new_queue, lake)
    table = DeltaTable(lake.path("messages"))
    assert spark.read.parquet(*table.file_uris()).count() == 4 + len(sent)
