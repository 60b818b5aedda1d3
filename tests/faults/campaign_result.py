"""What a campaign came to, as a table."""

from collections import Counter
from dataclasses import asdict, dataclass, field

from tests.faults.campaign_books import Books


@dataclass
class Result:
    """What a campaign came to."""

    seed: int
    books: Books
    operations: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(verb, how it ended)."""
    faults: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    """Transactions of clients that the server undid."""
    defects: Counter[str] = field(default_factory=Counter)
    told: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    folder: str = ""
    """Where outputs are that are worth a look; nothing where all is well."""

    @property
    def is_well(self) -> bool:
        return self.books.balanced and not self.defects

    def lines(self) -> list[str]:
        """The table."""
        counts = {k: v for k, v in asdict(self.books).items() if k != "wrong"}
        lines = [f"seed {self.seed}", "messages"]
        lines += [f"  {name.replace('_', ' '):20}{count:12,}" for name, count in counts.items()]
        lines += [f"operations {sum(self.operations.values()):,}"]
        for verb in sorted({verb for verb, _ in self.operations}):
            ends = {end: n for (of, end), n in sorted(self.operations.items()) if of == verb}
            told = ", ".join(f"{end}: {n:,}" for end, n in ends.items())
            lines.append(f"  {verb:20}{sum(ends.values()):12,}  {told}")
        lines += [f"faults {sum(self.faults.values()):,}"]
        lines += [f"  {name:20}{count:12,}" for name, count in sorted(self.faults.items())]
        kinds = ("hangs", "secrets", "tracebacks", "exits", "services", "clients", "figures")
        lines += ["defects", *(f"  {kind:20}{self.defects[kind]:12,}" for kind in kinds)]
        others = {k: v for k, v in self.defects.items() if k not in kinds}
        lines += [f"  {kind:20}{count:12,}" for kind, count in others.items()]
        lines += [f"transactions undone by the server: {dict(self.refused)}", *self.notes]
        lines += [f"! {words}" for words in (*self.books.wrong, *self.told)]
        if self.folder:
            lines.append(f"seed {self.seed}: look into {self.folder}")
        return lines
