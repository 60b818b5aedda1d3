"""A protected queue: no console purges, archives, uninstalls it or makes it smaller."""

import pytest

from console import catalog
from console.actions.install import install, uninstall
from console.actions.relay import relay
from console.designs import DESIGNS
from console.engines import Database
from console.errors import RefusedError
from console.rights import Rights
from console.verbs import named
from console.verbs.verb import Target
from tests.cli.calls import call
from tests.contract.client import Client
from tests.contract.variants import Variant
from tests.servers import connect


@pytest.fixture
def ring(virgin: Database) -> Client:
    """Ten slots, three messages."""
    client = Client(
        virgin, Variant(DESIGNS["ring"], {"size": "10"}).queue("public", "r", "postgresql")
    )
    install(virgin, client.queue)
    client.push_many(client.payloads(0, 1, 2))
    return client


def test_what_is_protected_is_not_lost(ring: Client) -> None:
    """Refused in the plan and where it is done, by the command line of anybody; pops go on."""
    url = ring.url
    because = ("--reason", "evidence of incident 4711")
    assert call("protect", "r", *because, "--yes", "--url", url).status == 0
    for words in (("purge", "r"), ("uninstall", "r", "--with-messages"), ("resize", "r", "5")):
        found = call(*words, "--yes", "r", "--url", url)
        assert found.status == 4
        assert "evidence of incident 4711" in found.err
        assert "unprotect r" in found.err
    assert call("resize", "r", "20", "--yes", "r", "--url", url).status == 0
    assert ring.pop() is not None
    assert call("protect", "r", "--yes", "--url", url).status == 2
    refused = call("unprotect", "r", "--yes", "y", "--url", url)
    assert refused.status in {2, 4}
    assert call("unprotect", "r", "--yes", "r", "--url", url).status == 0
    assert call("purge", "r", "--yes", "r", "--url", url).status == 0
    assert call("unprotect", "r", "--yes", "r", "--url", url).status == 2


def test_a_plan_made_before_is_refused_where_it_is_done(ring: Client) -> None:
    """Another console protects between the plan and its confirmation."""
    target = Target(ring.database, ring.queue, Rights.ADMIN)
    planned = named("purge").plan(
        target, {"filter": (), "reason": None, "permanently": False, "older": None}
    )
    named("protect").plan(target, {"reason": None}).done()
    with pytest.raises(RefusedError, match="protected"):
        planned.done()
    with pytest.raises(RefusedError, match="protected"):
        relay(ring.database, ring.queue, 5)
    with pytest.raises(RefusedError, match="protected"):
        uninstall(ring.database, ring.queue, keep_archive=True, with_messages=True)
    relay(ring.database, ring.queue, None)
    assert len(ring.drain()) == 3


def test_whoever_may_not_read_decisions_still_samples(ring: Client) -> None:
    """A login that was granted what an older console needed."""
    named("protect").plan(Target(ring.database, ring.queue, Rights.ADMIN), {"reason": None}).done()
    with connect(ring.url) as connection:
        connection.execute("CREATE ROLE narrow")
        connection.execute("GRANT USAGE ON SCHEMA dbq TO narrow")
        connection.execute("GRANT SELECT ON dbq.queue, dbq.setting, dbq.action TO narrow")
    with ring.database.transaction("read", read_only=True) as connection:
        assert [one.kind for one in catalog.read(connection).decisions] == ["protection"]
        connection.exec_driver_sql("SET LOCAL ROLE narrow")
        assert catalog.read(connection).decisions == ()
    with connect(ring.url) as connection:
        connection.execute("DROP OWNED BY narrow")
        connection.execute("DROP ROLE narrow")
