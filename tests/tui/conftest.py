"""What makes the screens' tests quick: style sheets parsed once a process, and no sleeping."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
from textual._context import active_app
from textual.css.model import RuleSet
from textual.css.parse import parse


@pytest.fixture(scope="package", autouse=True)
def parsed_once() -> Iterator[None]:
    """As Textual does it for the copies that it makes of an application's style sheet."""
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


_ROUNDS = 500
"""Of the event loop: a console opens in 50; what other threads post may never end."""

_REST_SECONDS = 0.005
_RESTS = 4


async def _settled(*_: float) -> None:
    """The event loop has nothing left to do, and what Textual does on timers soon after is done.

    Textual's own sleeps for 20 ms, and goes on for as long as the process works, in any thread.
    Only what a database is asked, in a thread, is given as long.
    """
    rests = _RESTS
    ready = asyncio.get_running_loop()._ready  # type: ignore[attr-defined]
    for _round in range(_ROUNDS):
        await asyncio.sleep(0)
        if ready:
            continue
        if rests and any(one.name == "job" for one in threading.enumerate()):
            rests -= 1
            await asyncio.sleep(_REST_SECONDS)
            continue
        app: Any = active_app.get()
        if app._exit or not app.screen_stack:
            return
        if app._resize_timer is not None:
            app._check_resize()
        elif app.screen._update_timer._active.is_set() or app.screen._callbacks:
            app.screen._on_timer_update()
        else:
            return


@pytest.fixture(scope="package", autouse=True)
def settled_without_sleep() -> Iterator[None]:
    with (
        mock.patch("textual.app.wait_for_idle", _settled),
        mock.patch("textual.pilot.wait_for_idle", _settled),
    ):
        yield
