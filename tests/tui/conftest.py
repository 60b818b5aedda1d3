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
    """Parse each style sheet once per process, not once per console.

    Textual does the same for the copies of an application's style sheet.
    """
    cache: dict[tuple[object, ...], list[RuleSet]] = {}

    def cached_parse(scope: str, css: str, read_from: Any, **options: Any) -> list[RuleSet]:
        variables = options["variable_tokens"] or {}
        tokens = tuple((name, *(token.value for token in of)) for name, of in variables.items())
        others = (options["is_default_rules"], options["tie_breaker"])
        key = (scope, css, read_from, tokens, *others)
        if key not in cache:
            cache[key] = list(parse(scope, css, read_from, **options))
        return cache[key]

    with (
        mock.patch("textual.css.stylesheet.parse", cached_parse),
        # By identity, as in Textual, but without a Python call for each rule of each widget.
        mock.patch.object(RuleSet, "__hash__", object.__hash__),
    ):
        yield


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """An empty database for each test."""
    with database_at(database_url) as found:
        yield found
