"""The ledger of an action: every message that was chosen is accounted for, batch by batch."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NoReturn

from console.errors import ConsoleError


class ImbalanceError(ConsoleError):
    """What went out of the source is not what came into the target; the batch is undone."""

    exit_status = 1


@dataclass(frozen=True)
class Ledger:
    """Counts of one batch, or of many together. It balances if nobody is missing and none is new.

    selected = out + skipped + failed, and out = into.
    """

    selected: int = 0
    out: int = 0
    """Taken out of the source."""
    into: int = 0
    """Put into the target."""
    skipped: Mapping[str, int] = field(default_factory=dict)
    """Reason -> messages that were no longer what was chosen; they were left alone."""
    failed: Mapping[str, int] = field(default_factory=dict)
    """Reason -> messages with which it could not be done; they were left alone."""

    def __add__(self, other: "Ledger") -> "Ledger":
        """Both together."""
        return Ledger(
            self.selected + other.selected,
            self.out + other.out,
            self.into + other.into,
            dict(Counter(self.skipped) + Counter(other.skipped)),
            dict(Counter(self.failed) + Counter(other.failed)),
        )

    @property
    def skipped_count(self) -> int:
        """All that were skipped, whatever the reason."""
        return sum(self.skipped.values())

    @property
    def failed_count(self) -> int:
        """All that failed, whatever the reason."""
        return sum(self.failed.values())

    @property
    def balanced(self) -> bool:
        """Whether every message is accounted for."""
        told = self.out + self.skipped_count + self.failed_count
        return self.selected == told and self.out == self.into

    def require_balance(self) -> "Ledger":
        """The same. ImbalanceError, which undoes the transaction that it leaves, where not."""
        if not self.balanced:
            self._refuse()
        return self

    def _refuse(self) -> NoReturn:
        raise ImbalanceError(
            "THE LEDGER DOES NOT BALANCE: the last batch was undone and the action stopped.",
            why=(
                f"Selected {self.selected:,}, out {self.out:,}, into {self.into:,}, "
                f"skipped {self.skipped_count:,}, failed {self.failed_count:,}."
            ),
            next_step="Messages of that batch are where they were. Do not repeat it; let the "
            "queue be looked at first: triggers, rules or a damaged table may be in the way.",
        )
