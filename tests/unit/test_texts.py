"""What operators read keeps to the field's words: help, findings, verbs, keys."""

import importlib
import pkgutil
import re
from collections.abc import Iterator

import click
import pytest
from textual.binding import Binding

import console.tui
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
"""Words that were ours alone, and what Python writes."""


def _commands(command: click.Command, name: str) -> Iterator[tuple[str, str]]:
    yield f"{name} --help", command.help or ""
    for option in command.params:
        yield f"{name} {option.name}", getattr(option, "help", None) or ""
    for below in getattr(command, "commands", {}).values():
        yield from _commands(below, f"{name} {below.name}")


def _keys() -> Iterator[tuple[str, str]]:
    for module in pkgutil.walk_packages(console.tui.__path__, "console.tui."):
        for one in vars(importlib.import_module(module.name)).values():
            for binding in vars(one).get("BINDINGS", ()) if isinstance(one, type) else ():
                if isinstance(binding, Binding):
                    yield f"{one.__name__} {binding.key}", binding.description
                    yield f"{one.__name__} {binding.key}", binding.tooltip


def _texts() -> Iterator[tuple[str, str]]:
    yield from _commands(cli, "dbq-console")
    yield from _keys()
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


def test_no_private_word_stands_in_a_text_that_operators_read() -> None:
    found = [
        f"{place}: {hit.group()}" for place, text in _texts() for hit in PRIVATE.finditer(text)
    ]
    assert not found


@pytest.mark.parametrize(
    ("number", "words"), [(0, "0 messages"), (1, "1 message"), (4711, "4,711 messages")]
)
def test_a_number_agrees_with_its_noun(number: int, words: str) -> None:
    assert numbered(number, "message") == words
