"""A screen that is closed runs no more of its scheduled calls and handles no more messages."""

from typing import Any

import pytest
from textual.screen import Screen
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from console.tui.context import Closable
from console.tui.dialogs.command_line import Palette
from console.tui.dialogs.verbs import VerbsDialog
from tests.tui.opened import alone, conn

KEY = ("prod", "public", "mail")


class Closed(Closable, Screen[None]):
    """An empty screen."""


async def test_calls_that_a_screen_scheduled_are_dropped_when_it_closes() -> None:
    done: list[str] = []
    async with alone() as console:
        await console.app.push_screen(screen := Closed())
        screen.after_refresh(done.append, "later")
        await console.pilot.pause()
        assert done == ["later"]
        screen.after_refresh(done.append, "too late")
        screen.every(0.001, lambda: done.append("again"))
        assert screen.close()
        await console.pilot.pause()
        await console.pilot.pause()
        assert done == ["later"]


@pytest.mark.parametrize(
    ("kind", "how"), [(Closed, "close"), (Closed, "dismiss"), (Palette, "dismiss")]
)
async def test_a_screen_that_is_closed_twice_leaves_the_screen_below_open(
    kind: type[Screen[Any]], how: str
) -> None:
    """Under load a second Enter reaches a palette that has already closed."""
    async with alone() as console:
        below = console.app.screen
        await console.app.push_screen(screen := kind())
        for _ in range(2):
            getattr(screen, how)()
        await console.pilot.pause()
        assert console.app.screen is below


async def test_a_verb_chosen_while_the_dialog_closes_opens_nothing() -> None:
    """It used to end the console: there was no screen left to close."""
    async with alone(connections=[conn()]) as console:
        app = console.app
        below = app.screen
        await app.push_screen(dialog := VerbsDialog(app.context, KEY))
        choices = dialog.query_one(OptionList)
        choices.add_option(option := Option("requeue", id="requeue"))
        dialog.dismiss()
        dialog.post_message(OptionList.OptionSelected(choices, option, 0))
        await console.pilot.pause()
        assert app.screen_stack == [below]
