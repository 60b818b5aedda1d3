"""Features: what each may import, and what its line says."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import console
from console import features
from console.features import NAMES, Feature

ROOT = Path(console.__file__).parent


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names)


def of_features(path: Path) -> set[str]:
    """The features that a file imports, at once or later."""
    heads = (name.split(".") for name in imports(path))
    return {head[2] for head in heads if head[:2] == ["console", "features"] and len(head) > 2} & {
        *NAMES
    }


def test_each_folder_has_its_line_and_each_line_its_folder() -> None:
    folders = {path.parent.name for path in (ROOT / "features").glob("*/__init__.py")}
    assert folders == {*NAMES}
    assert sorted(NAMES) == list(NAMES), "NAMES are in alphabetical order"


def test_the_core_imports_no_feature() -> None:
    core = [path for path in ROOT.rglob("*.py") if (ROOT / "features") not in path.parents]
    assert len(core) > 200
    assert [path.name for path in core if of_features(path)] == []


@pytest.mark.parametrize("name", NAMES)
def test_a_feature_imports_only_those_that_it_names(name: str) -> None:
    folder = ROOT / "features" / name
    needed = {need for path in folder.rglob("*.py") for need in of_features(path)}
    assert needed - {name} == {*features.features()[name].needs}


@pytest.mark.parametrize("name", NAMES)
def test_what_is_said_of_a_feature_imports_nothing_else(name: str) -> None:
    path = ROOT / "features" / name / "__init__.py"
    allowed = {"console.features", "console.features.Feature", "console.features.CommandKey"}
    assert {*imports(path)} <= allowed


def test_a_feature_whose_needs_are_not_here_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"a": Feature(("b",)), "b": Feature(("c", "d")), "d": Feature()}
    monkeypatch.setattr(features, "features", lambda: known)
    assert features.missing("d") == ()
    assert features.missing("b") == ("c",)
    assert features.missing("a") == ("c",)
