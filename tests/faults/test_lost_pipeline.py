"""An archive with cut connections: run again, it loses and doubles nothing."""

import itertools
import time
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path

import pytest

from console.engines import Timeouts, open_database
from console.errors import ConnectionFailedError
from console.features.lake.lake import Lake
from tests.contract.client import Client

pytest.importorskip("pyarrow", reason="needs the pipeline: pip install 'dbq-console[pipeline]'")

from console.features.lake.archive import job
from tests.faults.harness.connections import Cutter
from tests.pipeline.archive_tools import NO_RETENTION, all_payloads, payloads
from tests.servers.proxy import Fate, Proxy
from tests.tools.local_tasks import LocalTasks
from tests.tools.queues import install_queue

HASTY = Timeouts(connect_seconds=2, statement_seconds=2.0, lock_seconds=1.0)
MESSAGES = 40


def archive(client: Client, lake: Lake) -> None:
    """Archive everything, in small ranges and batches."""
    preview = job.find(client.database, client.queue, lake, NO_RETENTION)
    job.archive(client.database, preview, lake, LocalTasks(), sizes=job.Sizes(part=25, batch=7))


@pytest.mark.parametrize("fate", [Fate.CUT, Fate.UNANSWERED], ids=lambda fate: fate.name)
def test_an_archive_cut_off_anywhere_completes_when_run_again(
    database_url: str, tmp_path: Path, fate: Fate, *, long: bool
) -> None:
    with closing(open_database(database_url, label="here")) as direct:
        for number, pieces in enumerate(itertools.count(0, 3) if long else (40,)):
            queue = install_queue(direct, f"q{number}", "fifo", archive_at_pop="on")
            client = Client(direct, queue)
            pushed = client.payloads(*range(MESSAGES))
            client.push_many(pushed)
            client.pop_many(MESSAGES)
            lake = Lake(tmp_path / f"lake {number}")
            cutter = Cutter(pieces, fate)
            with (
                Proxy(database_url) as proxy,
                closing(open_database(proxy.url, label="here", timeouts=HASTY)) as proxied,
            ):
                proxy.fate = cutter
                began = time.monotonic()
                with suppress(ConnectionFailedError):
                    archive(Client(proxied, queue), lake)
                assert time.monotonic() - began < 60.0
            archive(client, lake)
            assert payloads(lake) == Counter(map(str, pushed)), pieces
            assert all_payloads(client, payloads(lake)) == payloads(lake), "some rows still exist"
            if not cutter.happened:
                break
