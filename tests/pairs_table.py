"""`python -m tests.pairs_table`: which design meets which verb with which payload, short tier."""

from collections import defaultdict

import pytest

from console.designs import designs_on
from tests.contract.variants import Variant

_LETTERS = {"text": "t", "json": "j", "bytes": "b"}


class Table:
    """Collects what would run."""

    def __init__(self) -> None:
        self.cells: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """All that is left is what runs."""
        for item in session.items:
            parameters: dict[str, object] = getattr(getattr(item, "callspec", None), "params", {})
            for value in parameters.values():
                if isinstance(value, Variant):
                    module = item.path.stem.removeprefix("test_").removesuffix("_postgresql")
                    self.cells[module][value.design.name].add(_LETTERS[value.payload])

    def lines(self) -> list[str]:
        """The table in Markdown; modules of two designs and fewer are no crosses."""
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
