"""The queue of NOTIFY is filled up by one session that listens and does not end its transaction."""

from contextlib import closing

import psycopg
import pytest

from console.doctor.diagnose import diagnose
from console.doctor.finding import Finding
from console.engines import Database, open_database
from tests.cli.calls import Console
from tests.servers import connect, value, wait_until
from tests.servers.postgresql import CopiedServer

pytestmark = pytest.mark.slow

SMALL = {"max_notify_queue_pages": "64"}
USAGE = "SELECT pg_notification_queue_usage()"


def test_whoever_holds_back_the_queue_of_notify_is_named_until_it_ends() -> None:
    with CopiedServer.start(settings=SMALL) as server:
        console = Console(server.url)
        for name, *options in (("orders", "--option", "notify=on"), ("quiet",)):
            console.done("install", "fifo", name, *options)
        with (
            closing(connect(server.url)) as listener,
            closing(open_database(server.url)) as database,
        ):
            listener.execute("LISTEN somebody")
            assert not found(database)
            listener.execute("BEGIN")
            pid = listener.info.backend_pid
            listener.execute("SELECT 1")
            fill(server.url, 0.6)
            (fills,) = found(database)
            assert fills.code.name == "notify_queue_fills"
            fill(server.url, 0.9)
            (full,) = found(database)
            assert full.code.name == "notify_queue_full"
            assert f"session {pid}" in full.summary
            assert f"pg_terminate_backend('{pid}')" in full.judgement_text
            with pytest.raises(psycopg.Error, match="too many notifications"):
                fill(server.url, 1.1)
            assert value(server.url, f"SELECT pg_terminate_backend({pid})") is True
            wait_until(lambda: value(server.url, USAGE) == 0.0, "nothing holds it back")
            assert not found(database)


def found(database: Database) -> list[Finding]:
    """The findings about NOTIFY; only a queue that notifies may have some."""
    diagnoses = {
        diagnosis.queue.name: diagnosis.findings
        for diagnosis in diagnose(database, patience_seconds=0.1)
    }
    codes = {
        name: [finding for finding in all_ if "notify" in finding.code.name]
        for name, all_ in diagnoses.items()
    }
    assert not codes["quiet"]
    return codes["orders"]


def fill(url: str, share: float) -> None:
    notify = "SELECT pg_notify('nobody', repeat('x', 7000) || n) FROM generate_series(1, 2) AS n"
    with connect(url) as connection:
        while (connection.execute(USAGE).fetchone() or (1.0,))[0] < share:
            connection.execute(notify)
