"""Fixtures of the screens' tests."""

from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
from textual.css.model import RuleSet
from textual.css.parse import parse

from console.engines import Database
from tests.tui.acting import database_at


@pytest.fixture(scope="package", autouse=True)
def parsed_once() -> Iterator[None]:
    """Style sheets: once a process, not once a console.

    As Textual does it for the copies that it makes of an application's.
    """
    known: dict[tuple[object, ...], list[RuleSet]] = {}

    def remembered(scope: str, css: str, read_from: Any, **options: Any) -> list[RuleSet]:
        variables = options["variable_tokens"] or {}
        tokens = tuple((name, *(token.value for token in of)) for name, of in variables.items())
        others = (options["is_default_rules"], options["tie_breaker"])
        key = (scope, css, read_from, tokens, *others)
        if key not in known:
            known[key] = list(parse(scope, css, read_from, **options))
        return known[key]

    with (
        mock.patch("textual.css.stylesheet.parse", remembered),
        # By identity, as Textual's own, but not by a call of Python for each rule of each widget.
        mock.patch.object(RuleSet, "__hash__", object.__hash__),
    ):
        yield


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """An empty one, for one test."""
    with database_at(database_url) as found:
        yield found
