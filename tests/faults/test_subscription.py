"""A database that a subscription makes a copy of another one: the console knows it, reads it
without a false figure, writes nothing into it, and brings it into service once it takes over."""

from collections.abc import Iterator

import pytest

from tests.cli.calls import Console
from tests.faults.test_standby import WRITING
from tests.servers import connect, wait_until
from tests.servers.versions import LONG_VERSIONS, Pair, publishing, subscribe

pytestmark = pytest.mark.slow

NAMED = "copy by the subscription mirror"


@pytest.fixture(params=LONG_VERSIONS)
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    with publishing(request.param) as made:
        console = Console(made.primary.url)
        console.install("ring size=50", "orders")
        console.install("ring subscribers=a,b", "news")
        console.install("claim consumers=direct", "work")
        console.install("fifo archive_at_pop=on", "lines")
        for queue in ("orders", "news", "work", "lines"):
            console.done("push", queue, "-", "--lines", stdin=b"0\n1\n2\n3\n4\n")
        for queue in ("orders", "lines"):
            console.done("pop", queue)
        for server in (made.primary, made.standby):
            server.run("CREATE ROLE guest LOGIN")
        subscribe(made)
        yield made


def test_a_copy_is_read_as_one_written_by_none_and_can_take_over(pair: Pair) -> None:
    publisher, copy = Console(pair.primary.url), Console(pair.standby.url)
    with connect(pair.primary.url) as consumer:
        consumer.execute("SELECT * FROM work_pop('consumer')")
        claimed = "SELECT count(*) FROM work WHERE claimed_by IS NOT NULL"
        wait_until(lambda: pair.standby.value(claimed) == 1, "the claim has arrived")
        _is_read_as_a_copy(copy)
    _is_not_written(copy, publisher, pair)

    pair.standby.run("ALTER SUBSCRIPTION mirror DISABLE")
    for code in ("id_sequence_behind", "sequence_behind"):
        for queue in ("orders", "news", "work", "lines"):
            words = ("doctor", queue, "--code", code, "--idle-for", "0s")
            copy(*words, "--fix", "--yes", queue)
            assert f"[{code}]" not in copy(*words).text
    assert copy.done("pop", "orders", "--count", "9").text.split() == ["1", "2", "3", "4"]
    assert copy.done("pop", "lines", "--count", "9").text.split() == ["1", "2", "3", "4"]


def _is_read_as_a_copy(copy: Console) -> None:
    status = copy.done("status", "--json").json
    assert status["standby"]["subscription"] == "mirror"
    ready = {queue["queue"]: queue["ready"] for queue in status["queues"]}
    assert ready == {"orders": None, "news": None, "work": 4, "lines": 4}
    assert NAMED in copy("status").text
    assert NAMED in copy("check").text
    assert copy("check", "--plugin").status == 3, "whoever watches it, watches its publisher"
    copy("messages", "orders").failed(4, "cannot be found", "ask its publisher")
    (claim,) = copy.done("stuck", "work", "--json").json["claims"]
    assert claim["owner"] == "unknown", "it is a session of the publisher"
    doctor = copy("doctor", "--idle-for", "0s", "--json").json["queues"]
    found = {one["code"] for queue in doctor for one in queue["findings"]}
    assert not [code for code in found if "sequence" in code], "nobody draws from them here"
    guest = Console(copy.url.replace("postgres@", "guest@"))
    guest("push", "orders", "x").failed(4, NAMED)


def _is_not_written(copy: Console, publisher: Console, pair: Pair) -> None:
    for words in WRITING:
        if "later" not in words:
            copy(*words).failed(4, NAMED, "Connect to its publisher")
    publisher.done("note", "still in step")
    noted = "SELECT count(*) FROM dbq.action WHERE verb = 'note'"
    wait_until(lambda: pair.standby.value(noted) == 1, "the subscription goes on")
