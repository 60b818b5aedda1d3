"""Selects the cases that the short tier runs of tests over designs and their options.

A case is a test on a variant: a design with options. Of a module's cases, which are about one verb,
the fewest run that cover every pair of all of them; README lists the pairs. `pytest --collect-only
-n 0 FILE` shows the cases of a module, `python -m tests.tools.pairs` which design is tested with
which verb and payload in the short tier.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence

import pytest

from console.designs import designs_on
from tests.contract.variants import Variant

Pair = tuple[Hashable, Hashable]


def pairs_of(test: str, variants: Iterable[Variant], *, payload: bool = True) -> Iterator[Pair]:
    """The pairs that a case covers; `payload`: whether the test moves or shows payloads."""
    for variant in variants:
        design, flow = variant.design.name, variant.design.flow
        yield test, flow
        yield "module", design
        if payload:
            yield test, ("payload", variant.payload)
        yield (design if payload else flow), ("payload", variant.payload)
        for name, value in variant.given.items():
            if payload or name != "payload":
                yield design, (name, value)


def covering(cases: Sequence[frozenset[Pair]]) -> set[int]:
    """The indexes of cases that together cover every pair: greedily, most new pairs first."""
    left = frozenset[Pair]().union(*cases)
    chosen: set[int] = set()
    while left:
        best = max(range(len(cases)), key=lambda number: (len(cases[number] & left), -number))
        chosen.add(best)
        left -= cases[best]
    return chosen


_LETTERS = {"text": "t", "json": "j", "bytes": "b"}


class Table:
    """A pytest plugin that collects which cases would run."""

    def __init__(self) -> None:
        self.cells: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """The cases that are not deselected."""
        for item in session.items:
            parameters: dict[str, object] = getattr(getattr(item, "callspec", None), "params", {})
            for value in parameters.values():
                if isinstance(value, Variant):
                    module = item.path.stem.removeprefix("test_").removesuffix("_postgresql")
                    self.cells[module][value.design.name].add(_LETTERS[value.payload])

    def lines(self) -> list[str]:
        """The table in Markdown, without modules of only one or two designs."""
        designs = list(designs_on("postgresql"))
        head = ["| module | " + " | ".join(f"`{name}`" for name in designs) + " |"]
        head.append("| --- " * (len(designs) + 1) + "|")
        for module, row in sorted(self.cells.items()):
            if len(row) > 2:
                cells = ("".join(sorted(row[name], reverse=True)) or "-" for name in designs)
                head.append(f"| {module} | " + " | ".join(cells) + " |")
        return head


def main() -> None:
    table = Table()
    pytest.main(["--collect-only", "-qq", "-n", "0", "tests/contract", "tests/faults"], [table])
    print(*table.lines(), sep="\n")


if __name__ == "__main__":
    main()
