"""What waits for a screen that is closed meanwhile does nothing, to it or to what lies below."""

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
    """A screen that is empty."""


async def test_what_was_put_off_is_not_done_once_it_is_closed() -> None:
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
async def test_closed_twice_it_leaves_what_lies_below(kind: type[Screen[Any]], how: str) -> None:
    """Under load a second Enter is heard by a palette that is gone already."""
    async with alone() as console:
        below = console.app.screen
        await console.app.push_screen(screen := kind())
        for _ in range(2):
            getattr(screen, how)()
        await console.pilot.pause()
        assert console.app.screen is below


async def test_a_verb_that_is_chosen_as_the_list_is_left_opens_nothing() -> None:
    """It ended the console: there was no screen left to close."""
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
