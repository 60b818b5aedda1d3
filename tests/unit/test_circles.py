"""No module imports itself by way of others: when it is loaded, later, or for types."""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import console

ROOT = Path(console.__file__).parent


def modules() -> dict[str, Path]:
    paths = {
        ".".join(p.with_suffix("").relative_to(ROOT.parent).parts): p for p in ROOT.rglob("*.py")
    }
    return {name.removesuffix(".__init__"): path for name, path in paths.items()}


def imported(path: Path, known: dict[str, Path]) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                of = f"{node.module}.{alias.name}"
                yield of if of in known else node.module


def circle(graph: dict[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_module_imports_itself_by_way_of_others() -> None:
    known = modules()
    assert len(known) > 300
    graph = {
        name: {one for one in imported(path, known) if one in known} - {name}
        for name, path in known.items()
    }
    assert circle(graph) == []


def test_a_circle_is_found() -> None:
    assert set(circle({"a": {"b"}, "b": {"c"}, "c": {"a"}})) == {"a", "b", "c"}
