"""Random faults on a ring, in any order; then the doctor, its repairs, a drain, and the counts.

`python -m tests.faults.doctor_campaign --seeds N` prints a line per seed and the totals.

Every call is also made on the model of the protocol (`model`). So the lost numbers are known
without the doctor, which has to name each of them and no other. Only how far a crash moved the
sequences, and what client processes did, is read from the tables.
"""

import argparse
import sys
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import psycopg

import console.verbs  # noqa: F401  # they plan the doctor's repairs
from console.doctor.finding import Diagnosis, Finding
from console.doctor.number_proof import LostKind, Side
from console.errors import ConsoleError
from console.features.demo.embedded import EmbeddedServer
from console.monitor.limits import DEFAULTS, Limits
from tests.faults.harness import model
from tests.faults.harness.doctor import numbers
from tests.faults.harness.model import Store
from tests.faults.harness.modelled import (
    InHand,
    ModelledRing,
    ReaderModel,
    lost_numbers,
    unpoppable_numbers,
)

NAMED_BY: dict[str, tuple[LostKind, ...]] = {
    "orphan": (LostKind.ORPHAN,),
    "spent": (LostKind.SPENT,),
    "spent_beyond_ring": (LostKind.SPENT,),
    "hole": (LostKind.HOLE, LostKind.PARKED_HOLE),
    "holes_pile_up": (LostKind.HOLE, LostKind.PARKED_HOLE),
    "stale_void": (LostKind.VOID,),
}
"""Finding -> the kinds of numbers that it names."""
_STAYS = {"full", "filling", "poison"}
"""Findings that may remain after --fix: their messages are to be popped, not repaired."""
_BY_HAND = {"spent_beyond_ring", "lapped", "pop_ahead"}
"""Findings that need a relay, which stops callers, so the operator has to confirm it."""
_POISON_ATTEMPTS = 5
_PATIENCE_SECONDS = 0.2
# Every claim is old at once; a backlog of a few seconds does not count.
_THRESHOLDS = replace(DEFAULTS, stuck_after_seconds=0.0).with_limits(age=Limits(86_400.0))
STEPS = {"burst": 30, "transaction": 30, "end_one": 12, "check_diagnosis": 10, "try_repairs": 1}
STEPS |= dict.fromkeys(("resize", "release", "complete"), 4)
"""Relative frequencies."""


@dataclass
class Tally:
    """The results of one seed, or of all."""

    counts: Counter[str] = field(default_factory=Counter)
    steps: Counter[str] = field(default_factory=Counter)
    findings: Counter[str] = field(default_factory=Counter)
    """Of the diagnoses before repairs."""
    causes: Counter[str] = field(default_factory=Counter)
    """Ranges of numbers, by their real cause and the cause that the doctor named."""
    wrong: list[str] = field(default_factory=list)
    """Unexplained losses, and false alarms."""

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


def codes_of(store: Store, lost: dict[LostKind, set[int]], *, slowest: bool) -> set[str]:
    """The codes that the doctor has to find while no transaction is open.

    Only for the slowest subscriber it says how full the ring is.
    """
    size, gap = store.size, store.gap
    parked_holes, spent = len(lost[LostKind.PARKED_HOLE]), len(lost[LostKind.SPENT])
    ahead = sum(void and number >= store.next_pop for number, void in store.parked)
    over = gap - ahead - size
    holes = "holes_pile_up" if parked_holes > size else "hole"
    share = Limits(0.9).exceeded(gap / size) is not None
    expected = {
        "orphan": bool(lost[LostKind.ORPHAN]),
        "spent_beyond_ring": spent > size,
        "spent": 0 < spent <= size,
        holes: bool(parked_holes or lost[LostKind.HOLE]),
        "stale_void": bool(lost[LostKind.VOID]),
        "lapped": over > 0 and len(lost[LostKind.HOLE]) >= over,
        "pop_ahead": -gap > size and spent <= size,
        "full": slowest and gap >= size,
        "filling": slowest and share and gap < size,
    }
    return {code for code, applies in expected.items() if applies}


class Case(ModelledRing):
    """The diagnosis of one ring with random faults."""

    def __init__(self, server: EmbeddedServer, url: str, seed: int, subscribers: int = 0) -> None:
        super().__init__(server, url, seed, subscribers)
        self.tally = Tally(steps=self.steps)

    def try_repairs(self) -> None:
        """Diagnose and repair in between, after ending open transactions."""
        self.end_all()
        self.repair_all()

    def check_diagnosis(self) -> None:
        """A diagnosis in between, which reports nothing about a side with an open transaction."""
        self.steps["check_diagnosis"] += 1
        findings, unseen = self.ring.examine(patience_seconds=0.01 * len(self.all))
        drawing = {drawn for it in self.open for drawn in it.drawn}
        hidden: set[tuple[str, Side]] = set()
        for reader in self.all:
            lost = lost_numbers(reader.store)
            provable = {
                kind: lost[kind] for kind in lost if (reader.name, kind.side) not in drawing
            }
            hidden |= {(reader.name, kind.side) for kind in lost if lost[kind]} & drawing
            self.compare(reader, findings, provable)
        if len(unseen) < len(hidden) or (unseen and not drawing):
            self.tally.counts["unexplained"] += 1
            self.tally.wrong.append(f"under way {drawing}, hidden {hidden}, reported {unseen}")

    def compare(
        self, reader: ReaderModel, findings: Sequence[Finding], lost: dict[LostKind, set[int]]
    ) -> None:
        """Every lost number, and no other, is named with its subscriber."""
        named: dict[tuple[LostKind, ...], set[int]] = {}
        for finding in findings:
            kinds = NAMED_BY.get(finding.code.name)
            if kinds and finding.subscriber == reader.name:
                named.setdefault(kinds, set()).update(numbers(finding))
        for kinds in set(NAMED_BY.values()):
            of_kind = {n for kind in kinds for n in lost.get(kind, ())}
            reported = named.get(kinds, set())
            self._wrong("unexplained", (reader.name, kinds), of_kind - reported)
            self._wrong("false_alarms", (reader.name, kinds), reported - of_kind)

    def _codes(self, reader: ReaderModel, lost: dict[LostKind, set[int]]) -> set[str]:
        slowest = min(self.all, key=lambda model: model.store.next_pop)
        expected = codes_of(reader.store, lost, slowest=reader is slowest)
        if any(row.claimed for row in reader.in_hand_rows.values()):
            expected.add("claims_gone")
        if any(row.attempts >= _POISON_ATTEMPTS for row in reader.in_hand_rows.values()):
            expected.add("poison")
        return expected

    def _causes(self, finding: Finding) -> None:
        """Count causes: a crash is the cause of ranges that it skipped at least in part."""
        if self.mixed or finding.code.name not in NAMED_BY:
            return
        reader_side = finding.subscriber, NAMED_BY[finding.code.name][0].side
        causes = cast("dict[str, list[tuple[int, int]]]", finding.evidence["causes"])
        for loss, runs in causes.items():
            for first, last in runs:
                crash = bool(self.skipped[reader_side] & set(range(first, last + 1)))
                self.tally.causes[f"{'crash' if crash else 'caller'} reported as {loss}"] += 1

    def _wrong(self, count: str, what: object, items: set[Any]) -> None:
        if items:
            self.tally.counts[count] += len(items)
            self.tally.wrong.append(f"{count}: {what} {sorted(items)}")

    def diagnosis(self) -> Diagnosis:
        """The result of all checks, as of `dbq-console doctor NAME`."""
        found = self.ring.diagnosed(_THRESHOLDS, patience_seconds=_PATIENCE_SECONDS)
        assert not found.unseen, found.unseen
        return found

    def repair_all(self) -> Diagnosis:
        """Repair the ring and the model like `doctor --fix --yes NAME`; the diagnosis before."""
        self.steps["doctor --fix"] += 1
        self.close_callers()
        before = self.diagnosis()
        strangers = {one.subscriber for one in before.findings} - self.readers.keys()
        self._wrong("false_alarms", "findings of unknown subscribers", strangers)
        for reader in self.all:
            lost = lost_numbers(reader.store)
            self.compare(reader, before.findings, lost)
            expected = self._codes(reader, lost)
            codes = {one.code.name for one in before.findings if one.subscriber == reader.name}
            self._wrong("unexplained", f"codes of {reader.name}", expected - codes)
            self._wrong("false_alarms", f"codes of {reader.name}", codes - expected)
            self.tally.findings.update(codes)
        for finding in before.findings:
            self._causes(finding)
        for finding in before.findings:
            if finding.repair is not None and finding.repair.unattended:
                self.ring.repair(finding)
        for reader in self.all:
            self._repair_model(reader)
        self.assert_equal()
        return before

    def _repair_model(self, reader: ReaderModel) -> None:
        lost, store = lost_numbers(reader.store), reader.store
        store.parked |= {(n, False) for n in lost[LostKind.ORPHAN]}
        if len(lost[LostKind.SPENT]) <= store.size:
            store.parked |= {(n, False) for n in lost[LostKind.SPENT]}
        store.parked -= {(n, False) for n in lost[LostKind.PARKED_HOLE]}
        store.parked |= {(n, True) for n in lost[LostKind.HOLE]}
        store.parked -= {(n, True) for n in lost[LostKind.VOID]}
        for row in reader.in_hand_rows.values():  # its owner is gone, see close_callers
            row.claimed = False

    def finish(self) -> None:
        """Diagnose, explain, repair, diagnose, drain, count."""
        self.end_all()
        self.assert_equal()
        late: dict[str, set[int]] = {}
        for reader in self.all:
            lost = lost_numbers(reader.store)
            if reader.waiting <= model.MOST_PARKED_READ:
                holes = lost[LostKind.PARKED_HOLE] | lost[LostKind.HOLE]
                orphans, voids = lost[LostKind.ORPHAN], lost[LostKind.VOID]
                assert unpoppable_numbers(reader.store) == (orphans, holes, voids)
            for kind, of_kind in lost.items():
                self.tally.counts[kind.value] += len(of_kind)
            self.tally.counts["claims"] += sum(row.claimed for row in reader.in_hand_rows.values())
            late_numbers = {live.message_id for live in reader.store.slots.values()}
            late_numbers = {number for number in late_numbers if number < reader.highest}
            self.tally.counts["late"] += len(late_numbers)
            # A late commit is popped late, with the number that a pop parked for it.
            late[reader.name] = late_numbers - {n for n, void in reader.store.parked if not void}
        before = self.repair_all()
        for finding in before.findings:
            if finding.code.name == "orphan":
                late[finding.subscriber] -= set(numbers(finding))
        for name, left in late.items():
            self._wrong("unexplained", f"late of {name}", left)
        if before.findings:
            self._require_clear()
        for reader in self.all:
            self._settle(reader)
        after = self.ring.measure()
        assert (after.live, max(after.gap, 0)) == (0, 0)
        diagnosis = self.diagnosis()
        assert not diagnosis.findings, [finding.summary for finding in diagnosis.findings]

    def _require_clear(self) -> None:
        """Assert that all is clear, except for findings that need judgement."""
        after = self.diagnosis()
        for finding in after.findings:
            if finding.code.name in _BY_HAND:
                self.steps["relay by hand"] += 1
                self.ring.repair(finding)
                assert model.relay(self.stores, self.stores[0].size)
                self.assert_equal()
                after = self.diagnosis()
                break
        left = {finding.code.name for finding in after.findings}
        assert left <= _STAYS, left

    def _settle(self, reader: ReaderModel) -> None:
        """Assert that everything is popped, in the order of its numbers."""
        live = reader.store.slots.values()
        expected = [id_ for id_, row in sorted(reader.in_hand_rows.items()) if not row.claimed]
        expected += [m.first_id for m in sorted(live, key=lambda m: m.message_id)]
        drained = reader.ring.drain()
        ids = [message.id for message in drained]
        assert sorted(ids) == sorted(expected), "other messages than the stored ones were popped"
        assert len(ids) == len(set(ids))
        if reader.waiting <= model.MOST_PARKED_READ:
            assert ids == expected, "popped in another order than that of the numbers"
        if self.in_hand:
            for message in drained:
                reader.in_hand_rows[message.id] = InHand(message.payload, message.attempts)
            for id_ in list(reader.in_hand_rows):
                self.complete_one(reader, id_)
            assert not reader.in_hand_rows
            drained = []
        counts = reader.ledger.settle([message.payload for message in drained])
        for name in ("acknowledged", "in_doubt", "lost", "doubled"):
            self.tally.counts[name] += getattr(counts, name)
        if self.in_hand or self.archives:
            assert counts.lost == 0


def campaign(
    server: EmbeddedServer, url: str, seed: int, most: int = 60, subscribers: int = 0
) -> Tally:
    """One ring in that database: random steps (up to `most`, and perhaps crashes), then the
    doctor."""
    case = Case(server, url, seed, subscribers)
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


def main() -> None:
    """Print a table with a line per seed; exit 1 if one failed or left something unexplained."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--subscribers", type=int, default=0)
    chosen = parser.parse_args()
    total, failed = Tally(), []
    print("seed", *(f"{name:>12}" for name in COLUMNS))
    with EmbeddedServer.start(settings={"max_prepared_transactions": "20"}) as server:
        url = server.create_database("campaigns")
        for seed in range(chosen.first_seed, chosen.first_seed + chosen.seeds):
            try:
                tally = campaign(server, url, seed, subscribers=chosen.subscribers)
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
