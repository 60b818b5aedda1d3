"""Each of the doctor's repairs, except for those of a ring's numbers, while the queue is in use.

A real fault is caused, the doctor finds it, and its repair runs as with `doctor --fix` (or as an
operator runs it who has to choose it), under traffic. At the end every acknowledged message was
popped and completed once, none of a rolled back transaction was popped, and the doctor says all
clear, or names exactly what is left.
"""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from _pytest.mark import ParameterSet

from console.actions import upgrade
from console.catalog import Queue, audit
from console.doctor import sessions
from console.doctor.finding import Diagnosis, Finding
from console.engines import Database
from console.errors import BusyError, ConnectionFailedError, ConsoleError
from console.monitor.limits import DEFAULTS, Thresholds
from tests.cli.calls import Answer, Console
from tests.contract.traffic import Traffic
from tests.contract.variants import Variant
from tests.faults.harness.doctor import codes_of, without_notes
from tests.faults.harness.faults import (
    FAULTS,
    Damage,
    Fault,
    dead_rows,
    died,
    dropped_code,
    dropped_indexes,
    left_open,
)
from tests.faults.harness.queue import CLAIM, FIFO, RING, FaultyQueue, Use
from tests.servers import wait_until

pytestmark = pytest.mark.slow

BACKLOG = 40
"""At most this many messages are ready or claimed, so that a small ring is not full."""
PROGRESS = 20
"""This many messages are completed before the fault, and again after its repair."""


def traffic_of(client: FaultyQueue, seed: int = 0) -> Traffic:
    """Traffic that continues during a fault."""
    return Traffic(client, seed, backlog=BACKLOG - 5, tolerated=(ConsoleError,))


SHORT = {"hangs-split", "dropped_column-status", "old_and_done-split"}
SHORT |= {"claimed_incomplete-split-dequeue=two_step"}
"""With the tests below, these cover each verb that repairs."""


def cases() -> list[ParameterSet]:
    """Each fault on each of its variants, most with --long only."""
    named = {f"{n}-{v}": (FAULTS[n], v) for n in FAULTS for v in FAULTS[n].variants}
    assert named.keys() >= SHORT
    long = pytest.mark.long
    return [
        pytest.param(*case, id=name, marks=() if name in SHORT else long)
        for name, case in named.items()
    ]


def diagnose_now(client: FaultyQueue, thresholds: Thresholds = DEFAULTS) -> Diagnosis:
    """A diagnosis of the queue as it is in the catalog now."""
    return client.diagnosed(thresholds, client.known, patience_seconds=0.5)


def findings_of(diagnosis: Diagnosis, code: str, damage: Damage) -> list[Finding]:
    """The findings of what was done."""
    return [
        finding
        for finding in diagnosis.findings
        if finding.code.name == code
        and (damage.session is None or finding.evidence["session"] == damage.session)
    ]


def fix(client: FaultyQueue, fault: Fault, damage: Damage) -> None:
    """Repair as `doctor --fix` does; a repair that needs a choice is run alone."""
    diagnoses: list[Diagnosis] = []

    def is_found() -> bool:
        diagnoses.append(diagnose_now(client, fault.thresholds))
        return bool(findings_of(diagnoses[-1], fault.code, damage))

    wait_until(is_found, f"{fault.code} is found")
    (finding,) = findings_of(diagnoses[-1], fault.code, damage)
    assert finding.repair is not None
    unattended = finding.repair.unattended
    for one in diagnoses[-1].findings if unattended else [finding]:
        if one is finding or (one.repair is not None and one.repair.unattended):
            # As the diagnosis: by a shorter one, claims at work of sessions that a pool has closed
            # would be released too.
            client.repair(one, thresholds=fault.thresholds)


def assert_audited(client: FaultyQueue, verb: str) -> None:
    """The audit has the action, with a good outcome."""
    with client.database.transaction("read the audit", read_only=True) as connection:
        wanted = audit.EntryFilter(queue=client.queue.name, verb=verb)
        entries = audit.entries(connection, wanted)
    assert entries
    assert {entry.outcome for entry in entries} == {audit.Outcome.DONE}


def wait_until_all_clear(client: FaultyQueue, thresholds: Thresholds = DEFAULTS) -> None:
    """Wait until consumers have processed what the fault left behind."""
    wait_until(lambda: not without_notes(diagnose_now(client, thresholds)), "all is well again")


@pytest.mark.parametrize(("fault", "variant"), cases())
def test_a_repair_under_traffic(use: Use, fault: Fault, variant: Variant, long: bool) -> None:
    short = f"{fault.cause.__name__}-{variant}" in SHORT
    for seed in range(3 if long and short else 1):
        check_repair(use(variant), fault, seed)


def check_repair(client: FaultyQueue, fault: Fault, seed: int) -> None:
    traffic = traffic_of(client, seed)
    with traffic.running(min_finished=PROGRESS):
        at_work = traffic.pop_one()
        with fault.cause(client) as damage:
            fix(client, fault, damage)
            diagnosis = diagnose_now(client, fault.thresholds)
            assert findings_of(diagnosis, fault.code, damage) == []
            traffic.finish(at_work)
            wait_until_all_clear(client, fault.thresholds)
    assert_audited(client, fault.verb)
    traffic.settle(damage.lost)
    diagnosis = diagnose_now(client, fault.thresholds)
    assert codes_of(diagnosis) == list(fault.left)
    assert diagnosis.unseen == ()
    assert traffic.released_meanwhile == 0, "a claim in progress was released"
    assert bool(traffic.refused) or not fault.fails


def test_orphans_of_an_ended_session_on_a_ring_are_repaired_too(use: Use) -> None:
    """Its pop numbers are consumed, which the doctor finds next."""
    held = FAULTS["left_open"]
    client = use(RING)
    traffic = traffic_of(client)
    with traffic.running(min_finished=PROGRESS), left_open(client) as damage:
        fix(client, held, damage)
        found = {finding.code.name for finding in without_notes(diagnose_now(client))}
        assert found == {"orphan"}
        fix(client, replace(held, code="orphan", thresholds=DEFAULTS), Damage())
        wait_until_all_clear(client)
    traffic.settle()
    assert diagnose_now(client).verdict == "all clear"


def test_dead_rows_at_the_head_are_removed(use: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    """No session prevents their removal, but reading the head has become slow."""
    monkeypatch.setattr(sessions, "DEAD_ROWS", 100)
    client = use(FIFO)
    slow = replace(client.snapshot(), slow=("ready",))

    def found() -> list[Finding]:
        some = client.found(sessions.CHECKS, snapshot=slow)
        assert {finding.code for finding in some} <= {sessions.DEAD_HEAD}
        return some

    traffic = traffic_of(client)
    with traffic.running(min_finished=PROGRESS):
        assert found() == []
        with dead_rows(client, 1_500):
            (finding,) = found()
            client.repair(finding)
        assert found() == []
    assert_audited(client, "maintain")
    traffic.settle()
    assert diagnose_now(client).verdict == "all clear"


def test_one_call_repairs_several_faults(use: Use) -> None:
    """On the command line, with its exit statuses."""
    client = use(CLAIM)
    console, name = Console(client.url), client.queue.name

    def codes(answer: Answer) -> set[str]:
        (queue,) = answer.json["queues"]
        assert queue["unseen"] == []
        return {finding["code"] for finding in queue["findings"]}

    traffic = traffic_of(client)
    with (
        traffic.running(min_finished=PROGRESS),
        died(client),
        dropped_indexes(client),
        dropped_code(client),
    ):
        before = console("doctor", name, "--json")
        assert (before.status, codes(before)) == (1, set(REPAIRED_BY))
        after = console("doctor", name, "--fix", "--yes", name, "--json")
        assert after.status == 0, after
        assert not codes(after) & set(REPAIRED_BY)
    for verb in REPAIRED_BY.values():
        assert_audited(client, verb)
    traffic.settle()
    assert console.done("doctor", name, "--json").json["queues"][0]["verdict"] == "all clear"


def test_a_failed_repair_does_not_stop_the_others(
    use: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = use(CLAIM)
    console, name = Console(client.url), client.queue.name
    fix = ("doctor", name, "--fix", "--yes", name, "--json")
    original = upgrade.upgrade

    def busy(database: Database, queue: Queue) -> Sequence[str]:
        del database, queue
        raise BusyError("The queue is in use.", why="Somebody holds a lock.", next_step="Wait.")

    def lost(database: Database, queue: Queue) -> Sequence[str]:
        del database, queue
        raise ConnectionFailedError("The connection was lost.")

    client.push_many(client.payloads(*range(5)))
    with died(client), dropped_indexes(client), dropped_code(client):
        monkeypatch.setattr(upgrade, "upgrade", lost)
        ended = console(*fix)
        assert ended.status == 3
        assert ended.json["error"]["what"] == "The connection was lost."
        monkeypatch.setattr(upgrade, "upgrade", busy)
        some = console(*fix)
        assert some.status == 1
        (queue,) = some.json["queues"]
        assert [one["code"] for one in queue["findings"]] == ["code_missing"]
        assert "not done: install the code" in some.err
        assert "The queue is in use. Somebody holds a lock. Wait." in some.err
        monkeypatch.setattr(upgrade, "upgrade", original)
        every = console(*fix)
        assert (every.status, every.json["queues"][0]["verdict"]) == (0, "all clear")
    assert len(client.drain()) == 5


REPAIRED_BY = {"code_missing": "upgrade", "claims_gone": "release", "index_missing": "maintain"}
