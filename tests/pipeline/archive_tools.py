"""Runs of archive with their tasks in this process, and the results."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import text

from console import sql
from console.actions import execute, message_action
from console.actions.message_action import MessageAction
from console.catalog.audit import EntryFilter as Entries
from console.catalog.audit import entries
from console.engines import Database
from console.features.lake.archive import job
from console.features.lake.archive.files import pq
from console.features.lake.archive.plan import ArchiveRequest
from console.features.lake.lake import Lake
from console.features.lake.spark import Item, Work
from console.features.lake.table import MessagesTable
from console.monitor.filters import parse
from console.monitor.scan_query import MessageSource
from tests.cli.calls import Answer
from tests.contract.client import Client
from tests.pipeline import driver
from tests.tools.local_tasks import LocalTasks
from tests.tools.warm import Forked

NO_RETENTION = ArchiveRequest(retention=0.0)
"""Everything in the archive, whatever its age."""
_DEADLINE_SECONDS = 600.0


class HookedTasks(LocalTasks):
    """Local tasks that call a hook before they run one kind of work."""

    def __init__(self, work: Work, hook: Callable[[], object]) -> None:
        self._work = work
        self._hook = hook

    def run(
        self, work: Work, items: Sequence[Item], *more: Any, **how: Any
    ) -> list[dict[str, Any]]:
        if work == self._work:
            self._hook()
        return super().run(work, items, *more, **how)


def run(
    client: Client,
    lake: Lake,
    request: ArchiveRequest = NO_RETENTION,
    tasks: LocalTasks | None = None,
    part_rows: int = 100_000,
    batch: int = 7,
    **how: Any,
) -> list[job.ArchiveResult]:
    """`how`: on_progress, connections (3: one session deletes)."""
    offered = job.find(client.database, client.queue, lake, request)
    sizes = job.Sizes(part=part_rows, batch=batch)
    return job.archive(client.database, offered, lake, tasks or LocalTasks(), sizes=sizes, **how)


def rows_in_lake(lake: Lake) -> list[dict[str, Any]]:
    """All rows that readers of the table find."""
    table = MessagesTable.open(lake)
    return [] if table is None else table._table.to_pyarrow_table().to_pylist()


def payloads(lake: Lake) -> Counter[str]:
    return Counter(row["payload"] for row in rows_in_lake(lake))


def all_payloads(client: Client, in_lake: Counter[str]) -> Counter[str]:
    """Payload -> how often it is in the queue, in its archive and in the lake together."""
    name = client.queue.design.name
    tables = {"fifo": "payload FROM <>", "status": "text_data FROM <>"}
    found = Counter(in_lake)
    for source in (tables.get(name, "text_data FROM <data>"), "payload FROM <archive>"):
        found.update(row[0] for row in execute_sql(client, f"SELECT {source}"))
    return found


def execute_sql(client: Client, statement: str, **values: object) -> list[Any]:
    """Run a statement with the names of the queue's tables put in."""
    dialect = client.database.product.dialect
    for suffix in ("archive", "meta", "data", ""):
        name = f"{client.queue.name}_{suffix}" if suffix else client.queue.name
        qualified = ".".join(sql.quote_identifier(dialect, n) for n in (client.queue.schema, name))
        statement = statement.replace(f"<{suffix}>", qualified)
    with client.database.transaction("prepare a test") as connection:
        result = connection.execute(text(statement), values)
        return list(result.all()) if result.returns_rows else []


def archived_keys(client: Client) -> list[int]:
    return [row[0] for row in execute_sql(client, "SELECT archive_id FROM <archive> ORDER BY 1")]


def push_and_pop(client: Client, count: int) -> list[str]:
    """Push and pop this many messages; their payloads."""
    sent = [f"{client.queue.name} {number}" for number in range(count)]
    client.push_many(sent)
    assert len(client.drain()) == count
    return sent


def act(client: Client, verb: Callable[[MessageSource], MessageAction], *words: str) -> int:
    """Run an operator's verb; how many messages it moved."""
    with client.database.transaction("read the queue", read_only=True) as connection:
        source = MessageSource.of(connection, client.queue)
    action = verb(source)
    planned = message_action.select(client.database, action, parse(words))
    return execute.execute(client.database, action, planned).ledger.out


def audit(client: Client) -> list[tuple[str, int, str]]:
    return audit_of(client.database, client.queue.name, job.VERB, client.queue.schema)


def audit_of(
    database: Database, queue: str, verb: str, schema: str | None = None
) -> list[tuple[str, int, str]]:
    with database.transaction("read the audit", read_only=True) as connection:
        found = entries(connection, Entries(schema, queue, verb))
    return [(entry.verb, entry.done, entry.outcome) for entry in reversed(found)]


def push_and_pop_by_subscribers(client: Client, count: int) -> list[str]:
    """Push this many messages and pop them by each subscriber of the ring; their payloads."""
    return push_and_pop(replace(client, queue=client.queue.views[0]), count)


def damage(lake: Lake, part: str, change: Callable[[bytes], bytes]) -> None:
    """Change the content of the only file whose path contains this."""
    (path,) = [path for path in lake.files("") if part in path]
    file = Path(lake.path(path))
    file.write_bytes(change(file.read_bytes()))


def flip(data: bytes) -> bytes:
    """Flip one bit of the first keys."""
    at = data.index(b"\x28\xb5\x2f\xfd") + 12  # in the first frame of zstd
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def another_value(data: bytes, name: str = "attempts") -> bytes:
    """The same rows, with another value in the first one."""
    table = pq.read_table(pa.BufferReader(data))
    at, values = table.schema.names.index(name), table.column(name).to_pylist()
    other = pa.array([values[0] + 1_000, *values[1:]], table.schema.field(name).type)
    written = pa.BufferOutputStream()
    pq.write_table(table.set_column(at, table.schema.field(name), other), written)
    return bytes(written.getvalue())


def stop_at(client: Client, lake: Lake, phase: str) -> None:
    """A run of three ranges that stops when a phase begins."""

    class Stopped(Exception):  # noqa: N818
        pass

    def on_progress(now: str, **_: int) -> None:
        if now == phase:
            raise Stopped

    with pytest.raises(Stopped):
        run(client, lake, part_rows=10, on_progress=on_progress, connections=3)


def drive(name: str, lake: Lake, *words: str, url: str = "", most_bytes: int = 0) -> Answer:
    """A run that may kill itself, or whose files may have so many bytes; a JVM needs its own
    process."""
    module = "tests.pipeline.driver"
    environment = {**os.environ, "DBQ_URL": url, driver.MOST_BYTES: str(most_bytes)}
    if "--spark" in words:
        command = [sys.executable, "-m", module, name, lake.location, *words]
        done = subprocess.run(
            command, env=environment, capture_output=True, timeout=_DEADLINE_SECONDS, check=False
        )
        return Answer(done.returncode, done.stdout, done.stderr.decode())
    arguments = [name, lake.location, *words]
    with Forked(arguments, environment, module=module, warm="lake") as running:
        out, err = running.communicate(timeout=_DEADLINE_SECONDS)
    return Answer(running.returncode, out, err.decode())
