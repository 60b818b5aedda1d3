"""The ledger of clients' logs: every message is acknowledged, in doubt, lost or doubled."""

import json
from collections import Counter
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.harness.client import BEFORE, DONE, ERROR, LOST, UNDONE, payload


@dataclass(frozen=True)
class Counts:
    """A campaign's result: messages, relays and kills."""

    acknowledged: int
    in_doubt: int
    lost: int
    doubled: int
    relays: int = 0
    kills: int = 0


def is_intact(text: str) -> bool:
    """Whether the text is as a client sent it."""
    name, _, rest = text.partition("/")
    serial = rest.partition("/")[0]
    return serial.isdecimal() and text == payload(name, int(serial))


@dataclass
class Ledger:
    acknowledged: set[str] = field(default_factory=set)
    """Pushes whose commit got a response, or left its mark."""
    pushed_in_doubt: Counter[str] = field(default_factory=Counter)
    """Pushes whose commit got no response; counted again if retried."""
    tries: Counter[str] = field(default_factory=Counter)
    """Attempted commits of each push."""
    numbers: list[tuple[str, int]] = field(default_factory=list)
    """What acknowledged pushes returned, if a number."""
    popped: Counter[str] = field(default_factory=Counter)
    kept: Counter[str] = field(default_factory=Counter)
    """Popped, but the row stays."""
    popped_in_doubt: Counter[str] = field(default_factory=Counter)
    unknown_in_doubt: int = 0
    """The most further messages that interrupted pops may have popped."""
    marked: int = 0
    """Messages of commits without a response, decided by whether their mark exists."""
    refused: Counter[str] = field(default_factory=Counter)
    """Transactions that the server rolled back with an expected error, by SQLSTATE."""
    errors: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, logs: Iterable[Path], marks: Container[str] = ()) -> "Ledger":
        """From the logs of a campaign's clients, and the marks of their transactions."""
        ledger = cls()
        for log in logs:
            before: dict[str, Any] | None = None
            for line in log.read_text().splitlines(keepends=True):
                if not line.endswith("\n"):
                    break  # killed while it wrote: what follows had not been begun
                event = json.loads(line)
                if event["kind"] == BEFORE:
                    ledger._add_in_doubt(before, marks)
                    before = event
                    ledger.tries.update(event["pushed"])
                elif event["kind"] == DONE:
                    before = None
                    ledger._add_done(event)
                elif event["kind"] == LOST:  # an UNDONE after it is of another transaction
                    ledger._add_in_doubt(before, marks)
                    before = None
                elif event["kind"] == ERROR:
                    ledger.errors.append(f"{log.stem}: {event['text']}")
                else:
                    assert event["kind"] == UNDONE
                    before = None
                    ledger.refused.update(state for state in [event.get("refused")] if state)
            ledger._add_in_doubt(before, marks)
        return ledger

    def _add_done(self, event: dict[str, Any]) -> None:
        self.acknowledged.update(event["pushed"])
        self.numbers += zip(event["pushed"], event.get("numbers", ()), strict=False)
        self.popped.update(event["popped"])
        self.kept.update(event["kept"])

    def _add_in_doubt(self, before: dict[str, Any] | None, marks: Container[str]) -> None:
        if before is not None and before.get("mark"):
            self.marked += len(before["pushed"]) + len(before["popped"]) + len(before["kept"])
            if before["mark"] in marks:
                self._add_done(before)
        elif before is not None:
            self.pushed_in_doubt.update(before["pushed"])
            self.popped_in_doubt.update(before["popped"])
            self.unknown_in_doubt += before["unknown"]

    def settle(self, drained: Iterable[str]) -> Counts:
        """The counts once the ring is drained; asserts that crashes explain all differences."""
        received = self.popped + Counter(drained)
        damaged = [text for text in received if not is_intact(text)]
        assert not damaged, f"messages came damaged: {damaged[:5]!r}"
        never_stored = received.keys() - self.acknowledged - self.pushed_in_doubt.keys()
        assert not never_stored, f"came out and was never stored: {sorted(never_stored)[:5]}"
        lost = self.acknowledged - received.keys()
        doubled = {text for text, times in received.items() if times > 1}
        in_doubt = self.popped_in_doubt.total() + self.unknown_in_doubt
        assert len(lost) <= in_doubt, f"lost {len(lost)}, pops in doubt {in_doubt}"
        unexplained = lost - self.popped_in_doubt.keys()
        assert len(unexplained) <= self.unknown_in_doubt, f"lost without doubt: {unexplained}"
        retried = {text for text in self.pushed_in_doubt if self.tries[text] > 1}
        assert doubled <= retried, f"doubled without a retry in doubt: {sorted(doubled)[:5]}"
        return Counts(
            acknowledged=len(self.acknowledged),
            in_doubt=in_doubt + self.pushed_in_doubt.total(),
            lost=len(lost),
            doubled=len(doubled),
        )
