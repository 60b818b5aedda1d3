"""archive with cut connections: run again, it loses and doubles nothing."""

import itertools
import time
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path

import pytest

from console.actions.install import install
from console.catalog import installed_queue
from console.designs import design
from console.engines import Timeouts, open_database
from console.errors import ConnectionFailedError
from console.pipeline.lake import Lake
from tests.contract.client import Client
from tests.faults.connection_faults import Cutter
from tests.proxy import Fate, Proxy

pytest.importorskip("pyarrow", reason="needs the pipeline: pip install 'dbq-console[pipeline]'")
HASTY = Timeouts(connect_seconds=2, statement_seconds=2.0, lock_seconds=1.0)
MESSAGES = 40


def archive(client: Client, lake: Lake) -> None:
    """Archive everything, in small ranges and batches."""
    from console.pipeline.archive import job  # noqa: PLC0415  # the extra's
    from console.pipeline.archive.plan import ArchiveRequest  # noqa: PLC0415
    from tests.local_tasks import LocalTasks  # noqa: PLC0415

    wanted = ArchiveRequest(retention=0.0)
    offered = job.preview(client.database, client.queue, lake, wanted, range_rows=25)
    job.archive(client.database, offered, lake, LocalTasks(), batch=7)


def payloads(lake: Lake) -> Counter[str]:
    """The messages in the lake."""
    from tests.pipeline.archive_tools import payloads as found  # noqa: PLC0415

    return found(lake)


@pytest.mark.parametrize("fate", [Fate.CUT, Fate.UNANSWERED], ids=lambda fate: fate.name)
def test_archive_is_cut_off_anywhere(
    database_url: str, tmp_path: Path, fate: Fate, *, long: bool
) -> None:
    fifo = design("fifo")
    options = fifo.complete_options({"archive_at_pop": "on"}, "postgresql")
    with closing(open_database(database_url, label="here")) as near:
        for number, pieces in enumerate(itertools.count(0, 3) if long else (40,)):
            queue = installed_queue("public", f"q{number}", fifo, options)
            install(near, queue)
            client = Client(near, queue)
            pushed = client.payloads(*range(MESSAGES))
            client.push_many(pushed)
            client.pop_many(MESSAGES)
            lake = Lake(tmp_path / f"lake {number}")
            cutter = Cutter(pieces, fate)
            with (
                Proxy(database_url) as proxy,
                closing(open_database(proxy.url, label="here", timeouts=HASTY)) as far,
            ):
                proxy.fate = cutter
                began = time.monotonic()
                with suppress(ConnectionFailedError):
                    archive(Client(far, queue), lake)
                assert time.monotonic() - began < 60.0
            archive(client, lake)
            assert payloads(lake) == Counter(map(str, pushed)), pieces
            assert not near_rows(client)
            if not cutter.happened:
                break


def near_rows(client: Client) -> int:
    """The rest of its archive in the database."""
    with client.database.transaction("count", read_only=True) as connection:
        return int(
            connection.exec_driver_sql(
                f'SELECT count(*) FROM public."{client.queue.name}_archive"'
            ).scalar_one()
        )
