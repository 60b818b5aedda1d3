"""Help is made from the keys of the screen below it, whichever that is."""

import pytest
from textual.binding import Binding
from textual.events import Key
from textual.widgets import Input

from console.tui.dialogs.command import CommandDialog
from console.tui.dialogs.command_line import CommandLineDialog
from console.tui.screens.help import HelpScreen, keys_of
from console.tui.screens.live import LiveScreen
from tests.tui.alone import alone, is_at, place
from tests.tui.opened import opened

KEY = ("prod", "public", "mail")


async def test_the_help_is_made_from_the_screen_below_it() -> None:
    async with alone(places=[place()], size=(100, 60)) as console:
        console.app.open_audit("prod")
        await console.pilot.pause()
        assert is_at(console, LiveScreen)
        await console.press("question_mark")
        shown = console.picture
        assert "show the action whole" in shown
        assert "operator:ann" in shown
        assert "mail in the name, design" not in shown, "that is the overview's filter"
        assert "≈" in shown
        await console.press("j", "j")
        assert ":messages" in console.picture


async def test_every_key_of_every_screen_has_words() -> None:
    async with alone(places=[place()]) as console:
        ways = {"smoke": (KEY,), "connections": ()}
        for way in ("install", "adopt", "smoke", "audit", "connections"):
            getattr(console.app, f"open_{way}")(*ways.get(way, ("prod",)))
            await console.pilot.pause()
            screen = console.app.screen
            for binding in type(screen).BINDINGS:
                assert isinstance(binding, Binding)
                assert binding.description
            told = dict(keys_of(screen.active_bindings.values()))
            assert any("one level out" in words for words in told.values()), way
            assert told[":"] == "a command"
        console.app.action_help()
        await console.pilot.pause()
        assert is_at(console, HelpScreen)
        assert "connect, and see what the login can do" in console.picture


async def test_the_keys_of_the_digits_are_a_range_and_brackets_are_brackets() -> None:
    async with opened() as console:
        console.app.open_queue(KEY)
        await console.pilot.pause()
        bindings = console.app.screen.active_bindings.values()
        keys = {words: keys for keys, words in keys_of(bindings)}
        assert keys["the tab of that number"] == "1-9"
        assert keys["the chart before"] == "["
        assert keys["one level out; never quits"] == "Escape q"


async def test_escape_and_q_are_the_same_on_the_overview() -> None:
    async with opened() as console:
        keys = keys_of(console.app.screen.active_bindings.values())
        assert ("Escape q", "one level out; never quits") in keys
        await console.press("escape")
        assert "Ctrl-Q quits" in console.picture


@pytest.mark.parametrize("key", ["question_mark", "f1"])
async def test_dialogs_have_help_too(key: str) -> None:
    async with opened() as console:
        await console.press("o")
        assert is_at(console, CommandDialog)
        await console.press(key)
        assert is_at(console, HelpScreen)
        assert "copy the command once more" in console.picture
        await console.press("escape")
        assert is_at(console, CommandDialog)


async def test_what_is_typed_right_after_a_colon_goes_into_the_line() -> None:
    async with opened() as console:
        for key in ("colon", "a", "s", "x"):
            console.app.post_message(Key(key, ":" if key == "colon" else key))
        await console.pilot.pause()
        assert is_at(console, CommandLineDialog)
        assert console.app.screen.query_one(Input).value == "asx"
        await console.press("colon")
        assert console.app.screen.query_one(Input).value == "asx:"
