"""The column `error_bytes` of messages: in JSON, in the list, on the screen and in the lake.

python -m tests.contract.adding.use_error_bytes URL FOLDER
"""

import asyncio
import sys
from pathlib import Path

from console import catalog
from console.engines import Database
from console.features.lake.archive import job
from console.features.lake.archive.files import pq
from console.features.lake.lake import Lake
from tests.cli.calls import Console
from tests.pipeline.archive_tools import NO_RETENTION
from tests.tools.local_tasks import LocalTasks
from tests.tui.acting import acting, database_at

ERROR = "no such mailbox"
BYTES = len(ERROR)


def ask(here: Console) -> None:
    here.done("install", "claim", "orders")
    here.done("push", "orders", "-", "--lines", stdin=b"a\nb\n")
    here.done("pop", "orders", "--fail", ERROR)
    messages = here.done("messages", "orders", "--json").json["messages"]
    assert {message["state"]: message["error_bytes"] for message in messages} == {
        "ready": None,
        "error": BYTES,
    }
    head, *rows = here.done("messages", "orders").text.splitlines()
    at = head.index("error bytes")
    shown = [row[at:].split()[0] for row in rows if row[0] != " "]
    assert sorted(shown) == [f"{BYTES}", "·"]


async def look(database: Database) -> None:
    async with acting(database, "orders", size=(140, 40)) as here:
        await here.press("enter", "2")
        await here.until(lambda: "error bytes" in here.picture)
        await here.until(lambda: f" {BYTES} " in here.picture)
        await here.leave()


def archive(here: Console, database: Database, lake: Lake) -> None:
    here.done("archive", "orders", "--filter", "state=error", "--yes", "orders")
    with database.transaction("read", read_only=True) as connection:
        (queue,) = catalog.read(connection).queues
    offered = job.find(database, queue, lake, NO_RETENTION)
    job.archive(database, offered, lake, LocalTasks())
    (file,) = Path(lake.location).rglob("*.parquet")
    assert pq.ParquetFile(file).read().column("error_bytes").to_pylist() == [BYTES]


if __name__ == "__main__":
    console = Console(sys.argv[1])
    ask(console)
    with database_at(console.url) as opened:
        asyncio.run(look(opened))
        archive(console, opened, Lake(sys.argv[2]))
