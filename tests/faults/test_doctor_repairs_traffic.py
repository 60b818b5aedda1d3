"""Each of the doctor's repairs, except for those of a ring's numbers, while the queue is in use.

A real fault is caused, the doctor finds it, and its repair runs as with `doctor --fix` (or as an
operator runs it who has to choose it), under traffic. At the end every acknowledged message was
popped and completed once, none of a rolled back transaction was popped, and the doctor says all
clear, or names exactly what is left.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from console.actions import upgrade
from console.catalog import Queue, audit
from console.doctor import sessions
from console.doctor.finding import Diagnosis, Finding
from console.engines import Database
from console.errors import BusyError, ConnectionFailedError, ConsoleError
from console.monitor.limits import DEFAULTS, Thresholds
from tests.cli.calls import Answer, Console
from tests.contract.installs import catalogued
from tests.contract.traffic import Traffic
from tests.contract.variants import Variant
from tests.faults.harness.doctor import codes_of, without_notes
from tests.faults.harness.faults import (
    Fault,
    Make,
    anonymous,
    changed_code,
    claimed_incomplete,
    dead_rows,
    died,
    dropped_code,
    dropped_column,
    dropped_indexes,
    dropped_key,
    half_an_index,
    hangs,
    left_open,
    leftover_index,
    lost_payloads,
    old_and_done,
    older_code,
    pooled,
    prepared,
)
from tests.faults.harness.queue import (
    CLAIM,
    FIFO,
    HEAP,
    IN_HAND,
    MANY_ERRORS,
    NAIVE,
    PENDING,
    RING,
    SPLIT,
    STACK,
    STATUS,
    STRICT,
    TWO_STEP,
    FaultyQueue,
    Use,
)
from tests.servers import wait_until

BACKLOG = 40
"""At most this many messages are ready or claimed, so that a small ring is not full."""
PROGRESS = 20
"""This many messages are completed before the fault, and again after its repair."""
SHORT_TERM = replace(DEFAULTS, stuck_after_seconds=0.5)


def traffic_of(client: FaultyQueue, seed: int = 0) -> Traffic:
    """Traffic that continues during a fault."""
    return Traffic(client, seed, backlog=BACKLOG - 5, tolerated=(ConsoleError,))


# ---------------------------------------------------------------------------- the repairs


@dataclass(frozen=True)
class Case:
    """A fault, its finding, and the verb that repairs it."""

    make: Make
    code: str
    verb: str
    variant: Variant
    thresholds: Thresholds = DEFAULTS
    left: tuple[str, ...] = ()
    """The findings that remain."""

    def __str__(self) -> str:
        return f"{self.make.__name__}-{self.variant}"


def cases(make: Make, code: str, verb: str, *variants: Variant, **more: Any) -> list[Case]:
    return [Case(make, code, verb, variant, **more) for variant in variants]


INCOMPLETE: dict[str, Any] = {"thresholds": MANY_ERRORS, "left": ("payload_lost",)}
CASES = [
    *cases(hangs, "claims_alive", "release", SPLIT),
    *cases(dropped_column, "code_missing", "upgrade", STATUS),
    *cases(old_and_done, "archive_lags", "archive", SPLIT),
    *cases(claimed_incomplete, "payload_missing", "repair", TWO_STEP, **INCOMPLETE),
]
"""With the tests below, these cover each verb that repairs."""

LONG_CASES = [
    *cases(lost_payloads, "payload_missing", "repair", SPLIT, **INCOMPLETE),
    *cases(died, "claims_gone", "release", CLAIM, STATUS, SPLIT, TWO_STEP, IN_HAND),
    *cases(hangs, "claims_alive", "release", CLAIM, STATUS, TWO_STEP, IN_HAND),
    *cases(pooled, "claims_unknown", "release", CLAIM, STATUS, SPLIT, IN_HAND),
    *cases(anonymous, "claims_nobody", "release", CLAIM, STATUS, SPLIT, IN_HAND),
    *cases(left_open, "rows_held", "end-session", NAIVE, HEAP, STRICT, thresholds=SHORT_TERM),
    *cases(left_open, "rows_held", "end-session", STACK, thresholds=SHORT_TERM),
    *cases(left_open, "rows_held", "end-session", PENDING, STATUS, CLAIM, thresholds=SHORT_TERM),
    *cases(prepared, "prepared_forgotten", "end-session", NAIVE, STRICT, thresholds=SHORT_TERM),
    *cases(prepared, "prepared_forgotten", "end-session", CLAIM, SPLIT, thresholds=SHORT_TERM),
    *cases(prepared, "prepared_forgotten", "end-session", PENDING, thresholds=SHORT_TERM),
    *cases(dropped_code, "code_missing", "upgrade", NAIVE, HEAP, FIFO, IN_HAND),
    *cases(dropped_code, "code_missing", "upgrade", CLAIM, STATUS, SPLIT, TWO_STEP),
    *cases(dropped_column, "code_missing", "upgrade", CLAIM, SPLIT, IN_HAND),
    *cases(changed_code, "code_changed", "upgrade", FIFO, HEAP, PENDING, CLAIM, STACK),
    *cases(older_code, "code_older", "upgrade", FIFO, SPLIT, CLAIM),
    *cases(dropped_indexes, "index_missing", "maintain", CLAIM, STATUS, SPLIT, IN_HAND),
    *cases(half_an_index, "index_invalid", "maintain", CLAIM, STATUS, SPLIT),
    *cases(leftover_index, "bloat", "maintain", CLAIM, STACK, SPLIT, FIFO),
    *cases(dropped_key, "key_missing", "maintain", STACK, PENDING, CLAIM, STATUS, SPLIT, FIFO),
    *cases(dead_rows, "bloat", "maintain", FIFO, PENDING, CLAIM),
    *cases(old_and_done, "archive_lags", "archive", STATUS, TWO_STEP),
]
"""With --long only."""


def diagnose_now(client: FaultyQueue, thresholds: Thresholds = DEFAULTS) -> Diagnosis:
    """A diagnosis of the queue as it is in the catalog now."""
    queue = catalogued(client.database, client.queue)
    return client.diagnosed(thresholds, queue, patience_seconds=0.5)


def findings_of(diagnosis: Diagnosis, code: str, fault: Fault) -> list[Finding]:
    """The findings of this fault."""
    return [
        finding
        for finding in diagnosis.findings
        if finding.code.name == code
        and (fault.session is None or finding.evidence["session"] == fault.session)
    ]


def fix(client: FaultyQueue, case: Case, fault: Fault) -> None:
    """Repair as `doctor --fix` does; a repair that needs a choice is run alone."""
    diagnoses: list[Diagnosis] = []

    def is_found() -> bool:
        diagnoses.append(diagnose_now(client, case.thresholds))
        return bool(findings_of(diagnoses[-1], case.code, fault))

    wait_until(is_found, f"{case.code} is found")
    (finding,) = findings_of(diagnoses[-1], case.code, fault)
    assert finding.repair is not None
    unattended = finding.repair.unattended
    for one in diagnoses[-1].findings if unattended else [finding]:
        if one is finding or (one.repair is not None and one.repair.unattended):
            client.repair(one)


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


def check_repair(client: FaultyQueue, case: Case, seed: int = 0) -> None:
    traffic = traffic_of(client, seed)
    with traffic.running(min_finished=PROGRESS):
        at_work = traffic.pop_one()
        with case.make(client) as fault:
            fix(client, case, fault)
            assert findings_of(diagnose_now(client, case.thresholds), case.code, fault) == []
            traffic.finish(at_work)
            wait_until_all_clear(client, case.thresholds)
    assert_audited(client, case.verb)
    traffic.settle(fault.lost)
    diagnosis = diagnose_now(client, case.thresholds)
    assert tuple(codes_of(diagnosis)) == case.left
    assert diagnosis.unseen == ()
    assert traffic.released_meanwhile == 0, "a claim in progress was released"
    assert bool(traffic.refused) or case.make not in {dropped_code, dropped_column}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_repair_under_traffic(use: Use, case: Case, long: bool) -> None:
    for seed in range(3 if long else 1):
        check_repair(use(case.variant), case, seed)


@pytest.mark.long
@pytest.mark.parametrize("case", LONG_CASES, ids=str)
def test_more_repairs_under_traffic(use: Use, case: Case) -> None:
    check_repair(use(case.variant), case)


def test_orphans_of_an_ended_session_on_a_ring_are_repaired_too(use: Use) -> None:
    """Its pop numbers are consumed, which the doctor finds next."""
    held = Case(left_open, "rows_held", "end-session", RING, SHORT_TERM)
    client = use(RING)
    traffic = traffic_of(client)
    with traffic.running(min_finished=PROGRESS), left_open(client) as fault:
        fix(client, held, fault)
        found = {finding.code.name for finding in without_notes(diagnose_now(client))}
        assert found == {"orphan"}
        fix(client, replace(held, code="orphan", thresholds=DEFAULTS), Fault())
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
