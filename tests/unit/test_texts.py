"""What operators read keeps to the field's words: help, findings, verbs, keys; so does the code."""

import ast
import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from textual.binding import Binding

import console
from console.cli.verbs import cli
from console.designs import DESIGNS
from console.doctor.checks import CODES
from console.formats import numbered
from console.help import topics
from console.verbs import all_verbs

PRIVATE = re.compile(
    r"\b(mends?|mended|twin|desk|shelf|shelves|contestants?|look(s|ed)? at|left alone|"
    r"h(e|im|is)|owner gone|spent|one level out|look(ed)? again|the doctor look(s|ed)|"
    r"grave|graver|gravest|gravity|anew|by itself|nobody|so many|(is|are) told|whom the|"
    r"asks? (the|a|no) database|database is asked|wants?|(stands?|lies?) (in|at|there)|"
    r"None|1 [a-z]+ (messages|claims)|1 messages)\b"
)
"""Words of a private language, and what Python prints."""


def _commands(command: click.Command, name: str) -> Iterator[tuple[str, str]]:
    yield f"{name} --help", command.help or ""
    for option in command.params:
        yield f"{name} {option.name}", getattr(option, "help", None) or ""
    for subcommand in getattr(command, "commands", {}).values():
        yield from _commands(subcommand, f"{name} {subcommand.name}")


SCREENS = {"tui", "screens", "tabs", "recordings"}
"""Packages that have some."""


def _keys() -> Iterator[tuple[str, str]]:
    """Of all screens, those of features too."""
    for module in pkgutil.walk_packages(console.__path__, "console."):
        if not SCREENS & {*module.name.split(".")}:
            continue
        for var in vars(importlib.import_module(module.name)).values():
            for binding in vars(var).get("BINDINGS", ()) if isinstance(var, type) else ():
                if isinstance(binding, Binding):
                    yield f"{var.__name__} {binding.key}", binding.description
                    yield f"{var.__name__} {binding.key}", binding.tooltip


def _texts() -> Iterator[tuple[str, str]]:
    yield from _commands(cli, "dbq-console")
    yield from _keys()
    yield "README.md", (Path(console.__path__[0]).parent / "README.md").read_text()
    for topic in topics().values():
        yield f"help {topic.name}", topic.text
    for code in CODES:
        yield code.name, f"{code.meaning}. {code.judgement}. {code.repair}"
    for verb in all_verbs():
        yield verb.name, f"{verb.summary}. {verb.help}"
        for parameter in verb.parameters:
            yield f"{verb.name} {parameter.name}", parameter.help
    for design in DESIGNS.values():
        yield design.name, f"{design.summary} {design.advice} {design.details}"


def test_no_text_for_operators_contains_a_private_word() -> None:
    found = [
        f"{source}: {hit.group()}" for source, text in _texts() for hit in PRIVATE.finditer(text)
    ]
    assert not found


PRIVATE_PARTS = {
    *("twin", "desk", "board", "asked", "told", "shelf", "walk", "stretch", "insist", "film"),
    *("projector", "taste", "calm", "halves", "crew", "journal", "contestant", "looks"),
}
"""Words that no name in the code contains."""
PRIVATE_NAMES = {"whole", "moving", "passing", "ways", "shift", "forest"}
"""Words that are plain as a part of a name, but no name by themselves."""


def _names(path: Path) -> Iterator[str]:
    """Names of the module, its classes and functions, parameters, variables and attributes."""
    yield path.stem
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.ClassDef(name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name
            case ast.arg(arg=name):
                yield name


def test_no_name_in_the_code_is_a_private_word() -> None:
    found = []
    root = Path(console.__path__[0]).parent
    any_word = re.compile("|".join(PRIVATE_PARTS | PRIVATE_NAMES), re.IGNORECASE)
    for path in sorted([*(root / "console").rglob("*.py"), *(root / "tests").rglob("*.py")]):
        if not any_word.search(f"{path.stem} {path.read_text()}"):
            continue  # to parse all files takes six seconds
        for name in sorted({*_names(path)}):
            words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().strip("_").split("_")
            if PRIVATE_PARTS & {*words, *(word.removesuffix("s") for word in words)}:
                found.append(f"{path.name}: {name}")
            if "_".join(words) in PRIVATE_NAMES:
                found.append(f"{path.name}: {name}")
    assert found == []


@pytest.mark.parametrize(
    ("number", "words"), [(0, "0 messages"), (1, "1 message"), (4711, "4,711 messages")]
)
def test_a_number_agrees_with_its_noun(number: int, words: str) -> None:
    assert numbered(number, "message") == words
