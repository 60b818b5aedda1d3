"""Counts what became of every message: acknowledged, in doubt, lost, doubled (DESIGN section 5)."""

import json
from collections import Counter
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.ring_worker import BEFORE, DONE, ERROR, LOST, UNDONE, payload


@dataclass(frozen=True)
class Counts:
    """What a campaign reports. Messages, but for the last two."""

    acknowledged: int
    in_doubt: int
    lost: int
    doubled: int
    relays: int = 0
    kills: int = 0


def is_whole(text: str) -> bool:
    """Whether a client sent it so."""
    name, _, rest = text.partition("/")
    serial = rest.partition("/")[0]
    return serial.isdecimal() and text == payload(name, int(serial))


@dataclass
class Ledger:
    """What the clients' logs say."""

    acknowledged: set[str] = field(default_factory=set)
    """Pushes that were stored and whose commit was answered, or left its mark."""
    doubtful: Counter[str] = field(default_factory=Counter)
    """Pushes whose commit was not answered; more than once where they were retried."""
    tries: Counter[str] = field(default_factory=Counter)
    """Commits that were asked for, of each pushed message."""
    numbers: list[tuple[str, int]] = field(default_factory=list)
    """What each of these pushes returned, where that is a number."""
    popped: Counter[str] = field(default_factory=Counter)
    kept: Counter[str] = field(default_factory=Counter)
    """Popped where a row of it stays."""
    popped_in_doubt: Counter[str] = field(default_factory=Counter)
    unknown_in_doubt: int = 0
    """At most so many more messages went with pops that were cut off: nobody knows which."""
    marked: int = 0
    """Messages whose commit was not answered; whether it happened is known by its mark."""
    refused: Counter[str] = field(default_factory=Counter)
    """Transactions that the server undid, by their SQLSTATE, which clients were to endure."""
    errors: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, logs: Iterable[Path], marks: Container[str] = ()) -> "Ledger":
        """The logs of all clients of one campaign; which marks their transactions left."""
        ledger = cls()
        for log in logs:
            before: dict[str, Any] | None = None
            for line in log.read_text().splitlines():
                event = json.loads(line)
                if event["kind"] == BEFORE:
                    ledger._doubt(before, marks)
                    before = event
                    ledger.tries.update(event["pushed"])
                elif event["kind"] == DONE:
                    before = None
                    ledger._done(event)
                elif event["kind"] == LOST:  # what is undone next is another transaction
                    ledger._doubt(before, marks)
                    before = None
                elif event["kind"] == ERROR:
                    ledger.errors.append(f"{log.stem}: {event['text']}")
                else:
                    assert event["kind"] == UNDONE
                    before = None
                    ledger.refused.update(state for state in [event.get("refused")] if state)
            ledger._doubt(before, marks)
        return ledger

    def _done(self, event: dict[str, Any]) -> None:
        self.acknowledged.update(event["pushed"])
        self.numbers += zip(event["pushed"], event.get("numbers", ()), strict=False)
        self.popped.update(event["popped"])
        self.kept.update(event["kept"])

    def _doubt(self, before: dict[str, Any] | None, marks: Container[str]) -> None:
        if before is not None and before.get("mark"):
            self.marked += len(before["pushed"]) + len(before["popped"]) + len(before["kept"])
            if before["mark"] in marks:
                self._done(before)
        elif before is not None:
            self.doubtful.update(before["pushed"])
            self.popped_in_doubt.update(before["popped"])
            self.unknown_in_doubt += before["unknown"]

    def settle(self, drained: Iterable[str], *, relays: int = 0, kills: int = 0) -> Counts:
        """The four counts, once the ring is drained; asserts what no crash excuses."""
        came = self.popped + Counter(drained)
        damaged = [text for text in came if not is_whole(text)]
        assert not damaged, f"messages came damaged: {damaged[:5]!r}"
        never_stored = came.keys() - self.acknowledged - self.doubtful.keys()
        assert not never_stored, f"came out and was never stored: {sorted(never_stored)[:5]}"
        lost = self.acknowledged - came.keys()
        doubled = {text for text, times in came.items() if times > 1}
        in_doubt = self.popped_in_doubt.total() + self.unknown_in_doubt
        assert len(lost) <= in_doubt, f"lost {len(lost)}, pops in doubt {in_doubt}"
        unexplained = lost - self.popped_in_doubt.keys()
        assert len(unexplained) <= self.unknown_in_doubt, f"lost without doubt: {unexplained}"
        retried = {text for text in self.doubtful if self.tries[text] > 1}
        assert doubled <= retried, f"doubled without a retry in doubt: {sorted(doubled)[:5]}"
        return Counts(
            acknowledged=len(self.acknowledged),
            in_doubt=in_doubt + self.doubtful.total(),
            lost=len(lost),
            doubled=len(doubled),
            relays=relays,
            kills=kills,
        )
