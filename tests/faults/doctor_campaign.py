"""Random faults on a ring, in any order; then the doctor, his repairs, a drain, and the counts.

`python -m tests.faults.doctor_campaign --seeds N` prints a line a seed and the totals.

Every call is made on the model of the protocol too (`ring_model`): so it is known without the
doctor which numbers went astray, and he has to name each of them and no other. Only how far a
crash threw the sequences, and what clients in processes of their own did, is read from the tables.
"""

import argparse
import sys
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast

import psycopg

import console.verbs  # noqa: F401  # they plan the doctor's repairs
from console.doctor.consumption import Consumption
from console.doctor.examine import examine
from console.doctor.finding import Diagnosis, Finding
from console.doctor.repairs import release_claims
from console.doctor.ring_proof import Astray, Side
from console.engines.embedded import EmbeddedServer
from console.errors import ConsoleError
from console.monitor.limits import DEFAULTS, Limits, Thresholds
from tests.faults import ring_model as model
from tests.faults.doctor_tools import look_at, numbers
from tests.faults.doctor_twins import InHand, Twins, astray, left_behind
from tests.faults.ring_campaign import (
    CONSUMER,
    PRODUCER,
    Clients,
    clients,
    kill_backend,
    try_relay,
    wait_for_progress,
)
from tests.faults.ring_ledger import Ledger
from tests.faults.ring_model import Store
from tests.faults.ring_tools import wait_for_server
from tests.servers import wait_until

SETTINGS = {"max_prepared_transactions": "20"}
"""What the server needs."""
NAMED_BY: dict[str, tuple[Astray, ...]] = {
    "orphan": (Astray.ORPHAN,),
    "spent": (Astray.SPENT,),
    "spent_beyond_ring": (Astray.SPENT,),
    "hole": (Astray.HOLE, Astray.PARKED_HOLE),
    "holes_pile_up": (Astray.HOLE, Astray.PARKED_HOLE),
    "stale_void": (Astray.VOID,),
}
"""Which finding names which numbers."""
_STAYS = {"full", "filling", "poison"}
"""What stays after --fix, and rightly: the ring's messages are to be popped, not repaired."""
_BY_HAND = {"spent_beyond_ring", "lapped", "pop_ahead"}
"""What wants a relay, which stops the callers: the operator types it."""
_POISON_ATTEMPTS = 5
_PATIENCE_SECONDS = 0.2
# Every claim is old at once; a backlog of a few seconds is none.
_THRESHOLDS: Thresholds = replace(
    DEFAULTS, stuck_after_seconds=0.0, age_seconds=Limits(warning=86_400.0)
)
_MOST_WAITING = model.MOST_PARKED_LOOKED_AT - 16
_MOST_OPEN = 2
STEPS = {"burst": 30, "transaction": 30, "end_one": 12, "look": 10, "mend_now": 1}
STEPS |= dict.fromkeys(("resize", "release", "complete"), 4)
"""How often each comes, beside the others."""
_EVENTS = ["client", "client", "terminate", "backend", "server", "relay"]


@dataclass
class Tally:
    """What one seed, or all of them, came to."""

    counts: Counter[str] = field(default_factory=Counter)
    steps: Counter[str] = field(default_factory=Counter)
    findings: Counter[str] = field(default_factory=Counter)
    """Of the looks before repairs."""
    causes: Counter[str] = field(default_factory=Counter)
    """Runs of numbers, by who took them and whom the doctor named."""
    wrong: list[str] = field(default_factory=list)
    """What is unexplained, and the false alarms, in words."""

    def add(self, other: "Tally") -> None:
        """Sum up."""
        self.counts += other.counts
        self.steps += other.steps
        self.findings += other.findings
        self.causes += other.causes
        self.wrong += other.wrong


COLUMNS = (
    *("acknowledged", "in_doubt", "lost", "doubled"),
    *("orphan", "hole", "parked_hole", "spent", "void", "claims", "late"),
    *("unexplained", "false_alarms"),
)


def codes_of(store: Store, lost: dict[Astray, set[int]]) -> set[str]:
    """What the doctor has to find at such a ring, where nobody is under way."""
    size, gap = store.size, store.gap
    parked_holes, spent = len(lost[Astray.PARKED_HOLE]), len(lost[Astray.SPENT])
    ahead = sum(void and number >= store.next_pop for number, void in store.parked)
    over = gap - ahead - size
    holes = "holes_pile_up" if parked_holes > size else "hole"
    share = Limits(0.9).exceeded(gap / size) is not None
    expected = {
        "orphan": bool(lost[Astray.ORPHAN]),
        "spent_beyond_ring": spent > size,
        "spent": 0 < spent <= size,
        holes: bool(parked_holes or lost[Astray.HOLE]),
        "stale_void": bool(lost[Astray.VOID]),
        "lapped": over > 0 and len(lost[Astray.HOLE]) >= over,
        "pop_ahead": -gap > size and spent <= size,
        "full": gap >= size,
        "filling": share and gap < size,
    }
    return {code for code, there in expected.items() if there}


class Case(Twins):
    """What is done to one ring, and what the doctor says of it."""

    def __init__(self, server: EmbeddedServer, url: str, seed: int) -> None:
        super().__init__(url, seed)
        self.server = server
        self.tally = Tally(steps=self.steps)
        self.skipped: dict[Side, set[int]] = {side: set() for side in Side}
        """The numbers that crashes took."""
        self.mixed = False
        """Clients in processes of their own were there, so it is not known who took which."""

    def step(self, name: str) -> None:
        """One of `STEPS` or a crash, a restart, traffic; and then ring and model are alike."""
        if self.waiting() > _MOST_WAITING:
            self.end_all()
            self.mend()
        getattr(self, name)()
        self.agree()

    def burst(self) -> None:
        """Transactions that commit, a call each."""
        for _ in range(self.chance.randint(1, 12)):
            it = self.begin()
            self.call(it)
            self.end(it, "commit")

    def transaction(self) -> None:
        """Some calls, some of them undone to a savepoint; then any end, or none yet."""
        ends = ["commit", "roll back", "roll back", "terminate", "hang up"]
        if len(self.open) < _MOST_OPEN:
            ends += ["leave open", "leave open", "prepare"]
        it = self.begin()
        for _ in range(self.chance.randint(1, 4)):
            undone = self.chance.random() < 0.15
            undo = it.tx.savepoint()
            kept = list(it.pushed), list(it.popped)
            it.connection.execute("SAVEPOINT here")
            self.call(it)
            if undone:
                self.steps["roll back to savepoint"] += 1
                it.connection.execute("ROLLBACK TO here")
                undo()
                it.pushed, it.popped = kept
        how = self.chance.choice(ends)
        if how != "leave open":
            self.end(it, how)

    def end_one(self) -> None:
        """One that was left open, or prepared."""
        if self.open:
            it = self.chance.choice(self.open)
            ways = ["commit", "commit", "roll back", *(["terminate"] * (not it.prepared))]
            self.end(it, self.chance.choice(ways))

    def resize(self) -> None:
        """To a random size, where what is live fits."""
        self.end_all()
        self.relay(self.chance.choice([None, self.chance.randint(1, 50)]))

    def release(self) -> None:
        """All claims, by force: whoever works on one cannot finish it any more."""
        if self.in_hand:
            self.end_all()
            count = sum(row.claimed for row in self.hand.values())
            if count:
                release_claims(self.ring.queue, count, 0.0, "alive").run(self.ring.database)
                self.steps["release"] += 1
            for row in self.hand.values():
                row.claimed = False

    def complete(self) -> None:
        """Some claims are finished; an attempt that was released cannot."""
        held = {message.id for one in self.open for message, _ in one.popped}
        for id_ in list(self.hand):
            if id_ not in held and self.chance.random() < 0.5:
                self.complete_one(id_)

    def restart(self) -> None:
        """In good order: not a number is skipped."""
        self.steps["restart"] += 1
        self.server.restart()
        self.sessions_are_gone()

    def crash(self) -> None:
        """kill -9 of the server or of one backend, which makes the whole server recover."""
        victim = self.chance.choice(["server", "backend"])
        self.steps[f"kill -9: {victim}"] += 1
        self._kill(victim)
        now = self.ring.measure()
        self.skipped[Side.PUSH].update(range(self.store.next_push, now.next_push))
        self.skipped[Side.POP].update(range(self.store.next_pop, now.next_pop))
        assert now.next_push <= self.store.next_push + 33
        assert now.next_pop <= self.store.next_pop + 33
        self.store.next_push, self.store.next_pop = now.next_push, now.next_pop

    def _kill(self, victim: str) -> None:
        if victim == "server":
            self.server.kill()
            self.server.restart()
        else:
            assert kill_backend(self.ring, self.chance)
            wait_for_server(self.ring.url)
        self.sessions_are_gone()

    def traffic(self) -> None:
        """Clients in processes of their own, and something that happens to them."""
        self.end_all()
        self.mixed = True
        if self.chance.random() < 0.7:  # else they meet orphans in their slots, and full of those
            self.mend()
            self.relay(self.chance.randint(60, 200))
        with clients(self.ring.url) as of:
            for calls in (PRODUCER, CONSUMER, self.chance.choice([PRODUCER, CONSUMER])):
                seed = self.chance.randrange(2**32)
                of.start(calls, rings=[self.ring.queue.name], seed=seed, rolled_back=0.1)
            wait_for_progress(of, 20_000)
            event = self.chance.choice(_EVENTS)
            self.steps[f"traffic: {event}"] += 1
            self._happens(of, event)
            of.finish()
            found = of.ledger()
        self._quiet()
        self._learn(found)
        self.read()

    def _happens(self, of: Clients, event: str) -> None:
        if event == "client":
            of.kill_one(self.chance)
        elif event == "terminate":
            others = "SELECT pid FROM pg_stat_activity WHERE xact_start < now() AND pid <> %s"
            for (pid,) in self.admin.execute(others, [self.admin.info.backend_pid]).fetchall()[:1]:
                self.admin.execute("SELECT pg_terminate_backend(%s)", [pid])
        elif event == "relay":
            try_relay(self.ring, self.chance)
        else:
            self._kill(event)
        wait_for_progress(of, 5_000)

    def _quiet(self) -> None:
        """The backend of a client that was killed has ended what it did."""
        busy = "SELECT FROM pg_stat_activity WHERE xact_start IS NOT NULL AND pid <> %s"
        busy += " AND datname = current_database() AND backend_type = 'client backend'"
        own = [self.admin.info.backend_pid]
        wait_until(lambda: not self.admin.execute(busy.encode(), own).fetchall(), "all is quiet")

    def _learn(self, found: Ledger) -> None:
        assert not found.errors, found.errors[:5]
        self.ledger.acknowledged |= found.acknowledged
        self.ledger.doubtful += found.doubtful
        self.ledger.tries += found.tries
        if self.in_hand:  # what was popped is there until it is complete, in doubt or not
            return
        if not self.archives:
            self.ledger.popped += found.popped
            self.ledger.popped_in_doubt += found.popped_in_doubt
            self.ledger.unknown_in_doubt += found.unknown_in_doubt
            return
        # The archive tells which pops that were in doubt have happened.
        rows = self.admin.execute(self.ring.sql("SELECT payload FROM {archive}")).fetchall()
        archived = Counter(text for (text,) in rows)
        known = self.ledger.popped + found.popped
        assert not known - archived, "popped, and not in the archive"
        doubt = found.popped_in_doubt.total() + found.unknown_in_doubt
        assert (archived - known).total() <= doubt
        self.ledger.popped = archived

    def mend_now(self) -> None:
        """The doctor comes in between; who is under way ends first."""
        self.end_all()
        self.mend()

    def look(self) -> None:
        """What he says in between: nothing of a side on which somebody is under way."""
        self.steps["look"] += 1
        found, unseen = look_at(self.ring, patience_seconds=0.01)
        drawing = {side for it in self.open for side in it.drew}
        lost = astray(self.store)
        told = {kind: lost[kind] for kind in lost if kind.side not in drawing}
        hidden = {kind.side for kind in lost if lost[kind] and kind.side in drawing}
        self.compare(found, told)
        if len(unseen) < len(hidden) or (unseen and not drawing):
            self.tally.counts["unexplained"] += 1
            self.tally.wrong.append(f"under way {drawing}, hidden {hidden}, told {unseen}")

    def compare(self, found: Sequence[Finding], lost: dict[Astray, set[int]]) -> None:
        """Each number that went astray is named, and no other is."""
        named: dict[tuple[Astray, ...], set[int]] = {}
        for finding in found:
            if kinds := NAMED_BY.get(finding.code.name):
                named.setdefault(kinds, set()).update(numbers(finding))
        for kinds in set(NAMED_BY.values()):
            of_kind = {n for kind in kinds for n in lost.get(kind, ())}
            told = named.get(kinds, set())
            self._wrong("unexplained", kinds, of_kind - told)
            self._wrong("false_alarms", kinds, told - of_kind)

    def _codes(self, lost: dict[Astray, set[int]]) -> set[str]:
        expected = codes_of(self.store, lost)
        if any(row.claimed for row in self.hand.values()):
            expected.add("claims_gone")
        if any(row.attempts >= _POISON_ATTEMPTS for row in self.hand.values()):
            expected.add("poison")
        return expected

    def _causes(self, finding: Finding) -> None:
        """A crash is told as the cause of runs that a crash took at least a part of."""
        if self.mixed or finding.code.name not in NAMED_BY:
            return
        side = NAMED_BY[finding.code.name][0].side
        causes = cast("dict[str, list[tuple[int, int]]]", finding.evidence["causes"])
        for loss, runs in causes.items():
            for first, last in runs:
                crash = bool(self.skipped[side] & set(range(first, last + 1)))
                self.tally.causes[f"{'crash' if crash else 'caller'} told as {loss}"] += 1

    def _wrong(self, count: str, what: object, of: set[Any]) -> None:
        if of:
            self.tally.counts[count] += len(of)
            self.tally.wrong.append(f"{count}: {what} {sorted(of)}")

    def diagnosis(self) -> Diagnosis:
        """The whole doctor, as `dbq-console doctor NAME` asks him."""
        (found,) = examine(
            self.ring.database,
            [self.ring.queue],
            thresholds_of=lambda _: _THRESHOLDS,
            patience_seconds=_PATIENCE_SECONDS,
            consumption=Consumption(3600.0, waits=False),
        )
        assert not found.unseen, found.unseen
        return found

    def mend(self) -> Diagnosis:
        """What `doctor --fix --yes NAME` does, and the model with it; what he said before."""
        self.steps["doctor --fix"] += 1
        self.callers_leave()
        lost = astray(self.store)
        expected = self._codes(lost)
        before = self.diagnosis()
        self.compare(before.findings, lost)
        codes = {finding.code.name for finding in before.findings}
        self._wrong("unexplained", "codes", expected - codes)
        self._wrong("false_alarms", "codes", codes - expected)
        self.tally.findings.update(codes)
        for finding in before.findings:
            self._causes(finding)
        for finding in before.findings:
            if finding.repair is not None and finding.repair.unattended:
                assert finding.repair.plan(self.ring.database)
                finding.repair.run(self.ring.database)
        self.store.parked |= {(n, False) for n in lost[Astray.ORPHAN]}
        if len(lost[Astray.SPENT]) <= self.store.size:
            self.store.parked |= {(n, False) for n in lost[Astray.SPENT]}
        self.store.parked -= {(n, False) for n in lost[Astray.PARKED_HOLE]}
        self.store.parked |= {(n, True) for n in lost[Astray.HOLE]}
        self.store.parked -= {(n, True) for n in lost[Astray.VOID]}
        if "claims_gone" in codes:
            for row in self.hand.values():
                row.claimed = False
        self.agree()
        return before

    def finish(self) -> None:
        """Look, explain, mend, look, drain, count."""
        self.end_all()
        self.agree()
        lost = astray(self.store)
        if self.waiting() <= model.MOST_PARKED_LOOKED_AT:
            holes = lost[Astray.PARKED_HOLE] | lost[Astray.HOLE]
            orphans, voids = lost[Astray.ORPHAN], lost[Astray.VOID]
            assert left_behind(self.store) == (orphans, holes, voids)
        for kind, of_kind in lost.items():
            self.tally.counts[kind.value] += len(of_kind)
        self.tally.counts["claims"] += sum(row.claimed for row in self.hand.values())
        late = {live.message_id for live in self.store.slots.values()}
        late = {number for number in late if number < self.highest}
        self.tally.counts["late"] += len(late)
        # A late commit is popped late, by the number that a pop parked for it.
        late -= {number for number, void in self.store.parked if not void}
        before = self.mend()
        named = [n for f in before.findings if f.code.name == "orphan" for n in numbers(f)]
        self._wrong("unexplained", "late", late - set(named))
        if before.findings:
            self._mended()
        self._settle()

    def _mended(self) -> None:
        """All clear, but for what wants judgement."""
        after = self.diagnosis()
        for finding in after.findings:
            if finding.code.name in _BY_HAND:
                assert finding.repair is not None
                self.steps["relay by hand"] += 1
                finding.repair.run(self.ring.database)
                assert self.store.relay(self.store.size)
                self.agree()
                after = self.diagnosis()
                break
        left = {finding.code.name for finding in after.findings}
        assert left <= _STAYS, left

    def _settle(self) -> None:
        """Everything comes, in the order of its numbers; then there is nothing left to say."""
        live = self.store.slots.values()
        expected = [id_ for id_, row in sorted(self.hand.items()) if not row.claimed]
        expected += [m.first_id for m in sorted(live, key=lambda m: m.message_id)]
        drained = self.ring.drain()
        ids = [message.id for message in drained]
        assert sorted(ids) == sorted(expected), "not what is there came"
        assert len(ids) == len(set(ids))
        if self.waiting() <= model.MOST_PARKED_LOOKED_AT:
            assert ids == expected, "it came in another order than that of the numbers"
        if self.in_hand:
            for message in drained:
                self.hand[message.id] = InHand(message.payload, message.attempts)
            for id_ in list(self.hand):
                self.complete_one(id_)
            assert not self.hand
            drained = []
        counts = self.ledger.settle([message.payload for message in drained])
        for name in ("acknowledged", "in_doubt", "lost", "doubled"):
            self.tally.counts[name] += getattr(counts, name)
        if self.in_hand or self.archives:
            assert counts.lost == 0
        after = self.ring.measure()
        assert (after.live, max(after.gap, 0)) == (0, 0)
        left = self.diagnosis()
        assert not left.findings, [finding.summary for finding in left.findings]


def campaign(server: EmbeddedServer, url: str, seed: int, most: int = 60) -> Tally:
    """One ring in the database of that URL: steps in any order (so many at most, and a crash or
    two), then the doctor."""
    case = Case(server, url, seed)
    chance = case.chance
    steps = chance.choices(list(STEPS), list(STEPS.values()), k=chance.randint(most // 2, most))
    rare = ["crash"] * chance.choice([0, 1, 1, 1, 2])
    rare += ["restart"] * (chance.random() < 0.25) + ["traffic"] * (chance.random() < 0.5)
    for step in rare:
        steps.insert(chance.randint(5, len(steps)), step)
    try:
        for step in steps:
            case.step(step)
        case.finish()
    finally:
        case.close()
    return case.tally


@contextmanager
def database() -> Iterator[tuple[EmbeddedServer, str]]:
    """A server for campaigns, and the database in which their rings lie."""
    with EmbeddedServer.start(settings=SETTINGS) as server:
        yield server, server.create_database("campaigns")


def main() -> None:
    """Print a table, a seed a line; exit 1 where one failed or left something unexplained."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=1)
    chosen = parser.parse_args()
    total, failed = Tally(), []
    print("seed", *(f"{name:>12}" for name in COLUMNS))
    with database() as (server, url):
        for seed in range(chosen.first_seed, chosen.first_seed + chosen.seeds):
            try:
                tally = campaign(server, url, seed)
            except (AssertionError, ConsoleError, psycopg.Error):
                failed.append(seed)
                print(f"seed {seed} failed:\n{traceback.format_exc()}", flush=True)
                continue
            total.add(tally)
            print(_line(seed, tally), *tally.wrong, sep="\n     ", flush=True)
    print(_line(" all", total))
    for what, counter in (
        ("steps", total.steps),
        ("findings", total.findings),
        ("causes", total.causes),
    ):
        print(f"{what}: " + ", ".join(f"{name} {n:,}" for name, n in sorted(counter.items())))
    if failed or total.wrong:
        sys.exit(f"failed: {failed}; {len(total.wrong)} wrong")


def _line(seed: object, tally: Tally) -> str:
    return f"{seed:>4} " + " ".join(f"{tally.counts[name]:12,}" for name in COLUMNS)


if __name__ == "__main__":
    main()
