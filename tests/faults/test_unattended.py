"""Repairs without a person, on real faults: twice proven, under a lease, within a budget, audited,
and never of what is alive."""

import os
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from console.catalog import audit
from console.catalog.audit import EntryFilter
from console.doctor.finding import Diagnosis
from console.engines import Database, open_database
from console.features.demo.embedded import EmbeddedServer
from console.features.history.recorder import Recorder
from console.features.history.recording import Recording
from console.features.unattended import repairer as repairer_module
from console.features.unattended.checks import CHECKS
from console.features.unattended.policy import Policy
from console.features.unattended.repairer import Repairer, RepairThread
from console.monitor.limits import defaults_of
from console.monitor.rates import key_of
from console.rights import Rights
from console.verbs import get_verb
from console.verbs.verb import Target, values_from_texts
from tests.contract.variants import Variant
from tests.faults.harness.clients import CONSUMER, PRODUCER, Clients, clients
from tests.faults.harness.doctor import Examined
from tests.faults.harness.faults import crash, kill_backend
from tests.faults.harness.queue import CLAIM, IN_HAND, Use
from tests.faults.harness.ring import Make, Ring, make_ring, wait_for_server
from tests.servers import connect, execute, fresh_database, value, wait_until
from tests.servers.poolers import PROGRAM, pgbouncer

pytestmark = pytest.mark.slow

ALL = Policy("always", "always", "bound")


class Acting(Repairer):
    """Is shown what is wrong as by a recorder, by default without a pause between two proofs."""

    def __init__(
        self,
        database: Database,
        policy: Policy = ALL,
        *,
        again_seconds: float = 0.0,
        rights: Rights = Rights.OPERATOR,
    ) -> None:
        super().__init__(
            database,
            lambda _: policy,
            rights=rights,
            thresholds_of=defaults_of,
            again_seconds=again_seconds,
        )

    def see(self, of: Examined, diagnosis: Diagnosis | None = None) -> Diagnosis:
        """Marked, with the queue as the catalog has it; a ring by the checks of rings alone."""
        found = diagnosis or (rings_own(of) if isinstance(of, Ring) else of.diagnosed())
        return self.marked(replace(found, queue=of.known))

    def made(self) -> list[str]:
        """What a step says of its attempts."""
        return [text for attempt in self.step() for text in attempt.texts]


Acts = Callable[..., Acting]


@pytest.fixture
def acts() -> Iterator[Acts]:
    """Makes one that has seen what is wrong once."""
    with ExitStack() as stack:

        def one(*of: Examined, sees: bool = True, **more: Any) -> Acting:
            acting = Acting(of[0].database, **more)
            stack.callback(acting.give_back)
            for each in of if sees else ():
                acting.see(each)
            return acting

        yield one


def entries(of: Examined) -> list[audit.Entry]:
    """Of what acted without a person."""
    wanted = EntryFilter(of.queue.schema, of.queue.name, by_agent=True)
    with of.database.transaction("read the audit", read_only=True) as connection:
        return audit.entries(connection, wanted)


def orphaned(ring: Ring, count: int = 4) -> Ring:
    """Numbers of that many messages are consumed, as by callers that died."""
    ring.fill(count)
    ring.consume_numbers("pop", count)
    return ring


def parked(ring: Ring, orphans: str) -> list[str]:
    """What is said once they are."""
    return [f"public.{ring.queue.name}: orphan: park {orphans}"]


def rings_own(ring: Ring, patience_seconds: float = 1.0) -> Diagnosis:
    findings, unseen = ring.examine(patience_seconds)
    return Diagnosis(ring.queue, tuple(findings), tuple(unseen))


def verb(of: Examined, name: str, **texts: str) -> None:
    chosen = get_verb(name)
    target = Target(of.database, of.queue, Rights.ADMIN)
    chosen.plan(target, values_from_texts(chosen, texts)).run_to_end()


def recurring(queue: Examined) -> Sequence[str]:
    return [f"{one.code.name}: {one.summary}" for one in queue.found(CHECKS)]


# ------------------------------------------------------------------------------------- orphans


def test_orphans_are_parked_once_they_are_proven_twice(make: Make, acts: Acts) -> None:
    ring = orphaned(make())
    acting = acts(ring, sees=False, again_seconds=1_000.0)
    shown = acting.see(ring)
    (finding,) = [one for one in shown.findings if one.code.name == "orphan"]
    assert finding.severity_text == "critical, left to the recorder"
    assert shown.healthy, "nobody is woken for it"
    assert acting.made() == [], "it was proven once"

    acting = acts(ring)
    assert acting.made() == parked(ring, "4 orphans")
    assert [one.payload for one in ring.pop_many(10)] == [f"message {n}" for n in range(1, 5)]
    (entry,) = entries(ring)
    assert entry.operator.endswith(f" pid {os.getpid()}")
    assert entry.detail == 'park 4 orphans; unattended: orphans = "always" (1-4)'
    assert (entry.done, entry.outcome) == (4, "done")
    assert recurring(ring) == [
        "repaired_unattended: repaired automatically: 4 orphans, in 1 repair since "
        f"{entry.started_at:%H:%M} UTC"
    ]


def test_only_what_the_first_proof_had_is_repaired(make: Make, acts: Acts) -> None:
    ring = orphaned(make(), 3)
    acting = acts(ring)
    ring.fill(2)
    ring.consume_numbers("pop", 2)
    assert acting.made() == parked(ring, "3 orphans")
    left = ring.findings()["orphan"]
    assert left.evidence["numbers"] == [[4, 5]]


def test_what_is_no_longer_wrong_is_not_repaired(make: Make, acts: Acts) -> None:
    ring = orphaned(make())
    acting = acts(ring)
    ring.execute("INSERT INTO {parked} SELECT generate_series(1, 4), false, now()")
    assert acting.made() == []
    assert entries(ring) == []


def test_a_number_of_an_open_transaction_is_not_repaired(make: Make, acts: Acts) -> None:
    """Its pop may still roll back; it is in nobody's hands only once that has ended."""
    ring = make()
    with ring.connect() as popping:
        ring.fill(2)
        popping.execute("BEGIN")
        assert ring.pop(on=popping) is not None
        acting = acts(ring)
        assert acting.made() == []
        popping.execute("ROLLBACK")
        acting.see(ring)
        assert acting.made() == parked(ring, "1 orphan")


@pytest.mark.parametrize("before", [True, False], ids=["before", "since the first proof"])
@pytest.mark.parametrize("decision", ["pause", "protect", "silence"])
def test_a_paused_protected_or_silenced_queue_is_left_to_a_person(
    make: Make, decision: str, before: bool, acts: Acts
) -> None:
    ring = orphaned(make())
    given = {"code": "orphan", "reason": "known"} if decision == "silence" else {}
    acting = acts(ring, sees=False)
    if before:
        verb(ring, decision, **given)
    acting.see(ring, ring.diagnosis())
    if not before:
        verb(ring, decision, **given)
    assert not any("park" in line for line in acting.made())
    assert "orphan" in ring.findings()
    shown = acting.see(ring, ring.diagnosis())
    (orphan,) = [one for one in shown.findings if one.code.name == "orphan"]
    assert orphan.silenced is None or orphan.silenced.kind == "silence"


def test_a_repair_that_fails_is_reported_once_and_keeps_no_other_from_being_made(
    make: Make, acts: Acts
) -> None:
    broken, ring = orphaned(make()), orphaned(make())
    acting = acts(broken, ring)
    broken.execute("ALTER TABLE {parked} RENAME COLUMN parked_at TO x")
    failed, repaired = acting.step()
    assert repaired.lines == ("park 4 orphans",)
    assert (failed.repaired, failed.news) == (False, True)
    assert failed.lines[0].startswith("not done: ")
    assert acting.outdated() == {key_of(broken.queue)}, "it is to be reported now"
    broken.execute("ALTER TABLE {parked} RENAME COLUMN x TO parked_at")
    assert not acting.see(broken).healthy, "somebody has to know"
    assert acting.outdated() == set()
    assert acting.made() == parked(broken, "4 orphans")


def test_a_repair_that_takes_too_long_keeps_no_other_from_being_made(
    make: Make, acts: Acts, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, ring = orphaned(make()), orphaned(make())
    monkeypatch.setattr(repairer_module, "_REPAIR_SECONDS", 2.0)
    ring.session.execute(
        "CREATE FUNCTION public.slow() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN PERFORM pg_sleep(60); RETURN NULL; END'"
    )
    slow.execute(
        "CREATE TRIGGER slow AFTER INSERT ON {parked} "
        "FOR EACH STATEMENT EXECUTE FUNCTION public.slow()"
    )
    acting = acts(slow, ring)
    failed, repaired = acting.step()
    assert "has not answered within 2 s for this repair" in failed.lines[0]
    assert repaired.lines == ("park 4 orphans",)


def test_a_finding_that_cannot_be_proven_for_a_while_stays_reported(make: Make, acts: Acts) -> None:
    """Else each open pop would begin a new minute in which nobody has to know."""
    ring = orphaned(make())
    acting = acts(ring)
    verb(ring, "protect")
    assert any("left to a person" in line for line in acting.made())
    unproven = Diagnosis(ring.queue, (), ("its numbers",), unproven=frozenset({"orphan"}))
    acting.see(ring, unproven)
    assert not acting.see(ring).healthy


def test_what_another_one_repaired_is_forgotten(make: Make, acts: Acts) -> None:
    """Its numbers were others: those that are found now have a minute, and two proofs, of their
    own."""
    ring = orphaned(make(), 2)
    acting, other = acts(ring), acts(ring)
    assert other.made() == parked(ring, "2 orphans")
    assert len(ring.pop_many(5)) == 2
    other.give_back()
    orphaned(ring, 3)
    acting.see(ring)
    assert acting.made() == parked(ring, "3 orphans")


def test_a_queue_that_was_dropped_is_forgotten(make: Make, acts: Acts) -> None:
    ring = orphaned(make())
    acting = acts(ring)
    ring.session.execute("DELETE FROM dbq.queue WHERE queue_name = %s", [ring.queue.name])
    assert acting.made() == []
    assert acting.outdated() == set()
    assert not acting.waits


def test_what_is_not_repaired_within_a_minute_is_reported(
    make: Make, acts: Acts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a lost connection takes the proof again and again."""
    ring = orphaned(make())
    acting = acts(ring, sees=False, again_seconds=1_000.0)
    assert acting.see(ring).healthy
    acting.forget_proofs()
    assert acting.see(ring).healthy
    assert acting.outdated() == set()
    monkeypatch.setattr(repairer_module, "LEFT_SECONDS", 0.0)
    assert acting.outdated() == {key_of(ring.queue)}
    assert not acting.see(ring).healthy


def test_of_two_recorders_one_repairs(make: Make, acts: Acts) -> None:
    ring = orphaned(make())
    one, other = acts(ring), acts(ring)
    assert one.step()
    assert other.step() == []
    assert one.me in other.held_by
    one.give_back()
    orphaned(ring)
    other.see(ring)
    assert other.step(), "the first one gave it back"
    other.give_back()


def test_without_the_right_nothing_is_repaired(make: Make, acts: Acts) -> None:
    ring = orphaned(make())
    acting = acts(ring, sees=False, rights=Rights.READ_ONLY)
    shown = acting.see(ring)
    assert not shown.healthy, "somebody has to know"
    assert acting.made() == []


def test_over_its_budget_it_stops_says_so_and_a_person_lets_it_go_on(
    make: Make, acts: Acts
) -> None:
    ring = make()
    policy = replace(ALL, repairs_per_hour=1)
    acting = acts(ring, sees=False, policy=policy)
    orphaned(ring, 2)
    acting.see(ring)
    assert acting.made() == parked(ring, "2 orphans")
    assert len(ring.pop_many(5)) == 2
    orphaned(ring, 3)
    for _ in range(2):
        acting.see(ring)
        (line,) = acting.made()
        assert "orphans stopped for up to an hour: repairs_per_hour = 1 is used up" in line
    stops = [one for one in entries(ring) if one.verb == "unattended"]
    assert [one.outcome for one in stops] == ["stopped"], "said once"
    assert not acting.see(ring).healthy, "somebody has to know"
    found = recurring(ring)
    assert any(one.startswith("repairs_recur: orphans are no longer") for one in found)
    verb(ring, "note", text="the consumers were restarted")
    assert not any("repairs_recur" in one for one in recurring(ring))
    acting.give_back()
    acting = acts(ring)
    assert acting.made() == parked(ring, "3 orphans")


# -------------------------------------------------------------------------------------- claims


@pytest.mark.parametrize("variant", [CLAIM, IN_HAND], ids=str)
def test_a_bound_claim_is_released_an_unbound_one_never(
    use: Use, variant: Variant, acts: Acts
) -> None:
    client = use(variant, 5)
    acting = acts(client, sees=False)
    with (
        closing(connect(client.url)) as living,
        closing(connect(client.url)) as bound,
        closing(connect(client.url)) as unbound,
    ):
        client.popped_by(living, bound=True)
        ((theirs, _),) = client.popped_by(bound, bound=True)
        client.popped_by(unbound)
        acting.see(client)
        assert acting.made() == [], "all are alive"
        client.end_session(bound)
        client.end_session(unbound)
        acting.see(client)
        lines = acting.made()
        assert any("1 done" in line or "released" in line for line in lines), lines
    (entry,) = entries(client)
    assert (entry.verb, entry.done) == ("release", 1)
    assert entry.detail.endswith(f'unattended: claims_gone = "bound" ({theirs})')
    drained = [message.id for message in client.drain()]
    assert theirs in drained
    assert len(drained) == 3, "those of the others stay claimed"


def test_the_claims_of_many_consumers_are_released_at_once(use: Use, acts: Acts) -> None:
    client = use(CLAIM, 12)
    for _ in range(12):
        client.die_with_claims()
    acting = acts(client)
    acting.made()
    (entry,) = entries(client)
    assert (entry.verb, entry.done) == ("release", 12)


def test_a_repair_that_did_nothing_is_none(use: Use, acts: Acts) -> None:
    """Somebody holds the row: it is reported like any other."""
    client = use(CLAIM, 5)
    (id_,) = client.die_with_claims()
    acting = acts(client)
    with closing(connect(client.url)) as holder:
        holder.execute("BEGIN")
        locked = client.sql("SELECT FROM {table} WHERE id::text = %s FOR UPDATE")
        holder.execute(locked, [id_])
        (attempt,) = acting.step()
    assert not attempt.repaired
    assert attempt.lines[0].startswith("nothing done: ")
    assert not acting.see(client).healthy


def test_where_consumers_may_come_through_a_pooler_no_claim_is_released(
    use: Use, acts: Acts
) -> None:
    """The end of a session proves nothing then, whatever the claim says."""
    client = use(CLAIM, 5)
    client.die_with_claims()
    acting = acts(client, sees=False)
    execute(client.url, "UPDATE dbq.queue SET options = options - 'consumers'")
    assert not acting.see(client).healthy
    assert acting.made() == []


def test_behind_a_pooler_no_claim_is_released(use: Use, acts: Acts) -> None:
    client = use(CLAIM, 5)
    client.die_with_claims()
    with closing(open_database(client.url)) as database:
        database.pooled = True
        acting = Acting(database)
        acting.see(client)
        assert acting.made() == []


def test_a_message_that_kills_its_consumers_is_left_to_a_person(use: Use, acts: Acts) -> None:
    client = use(CLAIM, 1)
    acting = acts(client, sees=False)
    for repair in range(4):
        client.die_with_claims()
        acting.see(client)
        (*_, line) = acting.made()
        assert ("came back after 3 repairs" in line) is (repair == 3), line
    found = recurring(client)
    assert any(one.startswith("repairs_recur: claims_gone are no longer") for one in found)


# ------------------------------------------------------------------------------ beside a recorder


@contextmanager
def recording(
    acting: Acting, folder: Path, say: Callable[[str], None] = lambda _: None
) -> Iterator[None]:
    """Beside a recorder of the same database."""
    recorder = Recorder(folder, "here")
    running = Recording(
        acting.database,
        recorder,
        interval_seconds=0.5,
        stuck_after_seconds=lambda _: 300.0,
        rights=Rights.OPERATOR,
    )
    running.companions = [RepairThread(acting, say, 0.1)]
    running.start()
    try:
        yield
    finally:
        running.stop(60)
        recorder.close()


def test_a_recorder_of_an_operator_drops_old_holes_without_a_policy(
    make: Make, database_url: str, tmp_path: Path, acts: Acts
) -> None:
    """A number whose push may still commit stays."""
    ring = make(database_url, size=100)
    said: list[str] = []
    holes, expected = set(range(1, 9)), set(range(9, 21))
    with ring.connect() as pusher:
        ring.consume_numbers("push", 8)
        assert ring.pop() is None
        ring.execute("SELECT setval({pop_name}, 20)")
        ring.execute("INSERT INTO {parked} SELECT generate_series(9, 20), false, now()")
        ring.execute("UPDATE {parked} SET parked_at = now() - interval '61 min'")
        pusher.execute("BEGIN")
        assert ring.push("to come", on=pusher) == 9
        acting = acts(ring, sees=False, policy=Policy())
        acting.see(ring, rings_own(ring, 0.0))
        assert acting.made() == [], "a push is under way"
        pusher.execute("COMMIT")
        with recording(acts(ring, sees=False, policy=Policy()), tmp_path, said.append):
            wait_until(
                lambda: {number for number, _ in ring.parked()} == expected, "the holes are dropped"
            )
        assert holes.isdisjoint(number for number, _ in ring.parked())
        assert ring.popped() == "to come"
    assert any("holes_pile_up" in line for line in said)


def stop_for_a_while(workers: Clients) -> None:
    """A client goes on after the others have."""
    client = workers.any()
    client.send_signal(signal.SIGSTOP)
    workers.wait_for_progress(4_000)
    client.send_signal(signal.SIGCONT)


def verbs_of_repairs(url: str) -> set[str]:
    """Of those that have been made."""
    query = (
        "SELECT string_agg(DISTINCT verb, ' ') FROM dbq.action "
        "WHERE operator LIKE 'unattended %' AND done > 0"
    )
    return set(str(value(url, query) or "").split())


def test_under_traffic_and_kills_nothing_alive_is_repaired(
    own_server: EmbeddedServer, tmp_path: Path, long: bool
) -> None:
    """Of two recorders one repairs. No claim of a connected session is ever released, nor any of
    consumers behind a pooler, whose sessions end while claims are at work, and every message is
    there once."""
    chance = random.Random(5)
    with fresh_database(own_server.url) as url, ExitStack() as stack:
        workers = stack.enter_context(clients(url, chance, marked=True))
        rings = [make_ring(url, size=2_000, max_bytes=300, in_hand=kept) for kept in ("off", "on")]
        pooled: dict[str, Any] = {}
        if PROGRAM:
            pooler = pgbouncer(url, server_lifetime="1", server_idle_timeout="1")
            conninfo = stack.enter_context(pooler).replace("+psycopg", "")
            pooled = {"conninfo": conninfo, "prepares": False}
            rings.append(make_ring(url, size=2_000, max_bytes=300, in_hand="on", consumers="any"))
        for ring in rings:
            stack.callback(ring.close)
        names = [ring.queue.name for ring in rings]
        direct: dict[str, Any] = {"rolled_back": 0.03, "retried": 0.0, "one_queue": True}
        direct |= {"claiming": names[1:], "works_seconds": 0.3, "claims_hold": True}
        for calls, count in ((PRODUCER, 2), (CONSUMER, 3)):
            workers.start(calls, *names[:2], count=count, **direct)
            if pooled:
                workers.start(calls, names[2], count=count - 1, **direct, **pooled)
        faults: list[Callable[[], object]] = [
            lambda: workers.any().kill(),
            lambda: stop_for_a_while(workers),
            lambda: kill_backend(url, chance),
            lambda: crash(own_server),
        ]
        policy = replace(ALL, repairs_per_hour=100_000, rows_per_hour=10_000_000)
        with ExitStack() as watched:
            for folder in "ab":
                database = watched.enter_context(closing(open_database(url)))
                acting = Acting(database, policy, again_seconds=1.0)
                watched.enter_context(recording(acting, tmp_path / folder))
            for fault in faults * (50 if long else 1):
                workers.wait_for_progress(4_000)
                fault()
                wait_for_server(url)
                again = chance.choice([PRODUCER, CONSUMER])
                if pooled and chance.random() < 0.3:
                    workers.start(again, names[2], **direct, **pooled)
                else:
                    workers.start(again, *names[:2], **direct)
            both = {"repair", "release"}
            wait_until(lambda: verbs_of_repairs(url) >= both, "both are repaired")
            workers.finish()
        ledger = workers.ledger()
        left = Counter[str]()
        for ring in rings:
            ring.relay()
            left += ring.left()
        assert ledger.popped + left == Counter(ledger.acknowledged)
        for ring in rings[2:]:
            assert {one.verb for one in entries(ring)} <= {"repair"}
