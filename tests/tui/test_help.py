"""Help lists the keys of the screen below it."""

from collections.abc import Callable

import pytest
from textual.binding import Binding
from textual.events import Key
from textual.widgets import Input, Markdown

from console.features.presets.screens import open_adopt
from console.help import topics
from console.tui.dialogs.command_line import CommandLineDialog
from console.tui.dialogs.dialog import CommandDialog
from console.tui.screens.help import HelpScreen, keys_of
from tests.tui.opened import alone, conn, opened

pytestmark = pytest.mark.slow

KEY = ("prod", "public", "mail")


async def test_every_key_has_a_description_and_help_lists_the_keys_of_the_screen_below() -> None:
    async with alone(connections=[conn()], size=(100, 60)) as console:
        app = console.app
        openers: dict[str, Callable[[], None]] = {
            "install": lambda: app.open_install("prod"),
            "adopt": lambda: open_adopt(app.context, "prod"),
            "smoke": lambda: app.open_smoke(KEY),
            "connections": app.open_connections,
            "audit": lambda: app.open_audit("prod"),
        }
        for name, open_screen in openers.items():
            open_screen()
            await console.pilot.pause()
            screen = app.screen
            for binding in type(screen).BINDINGS:
                assert isinstance(binding, Binding)
                assert binding.description
            keys = dict(keys_of(screen.active_bindings.values()))
            assert any("one level back" in words for words in keys.values()), name
            assert keys[":"] == "enter a command"
        await console.press("question_mark")
        shown = console.picture
        assert "show the whole action" in shown
        assert "operator=ann" in shown
        assert "mail in the name, design" not in shown, "that is the overview's filter"
        assert "≈" in shown
        await console.press("j", "j")
        assert ":messages" in console.picture


async def test_keys_are_named_as_they_are_on_the_keyboard() -> None:
    async with opened() as console:
        keys = keys_of(console.app.screen.active_bindings.values())
        assert ("Escape q", "one level back; never quits") in keys
        await console.press("escape")
        assert "Ctrl-Q quits" in console.picture
        console.app.open_queue(KEY)
        await console.pilot.pause()
        bindings = console.app.screen.active_bindings.values()
        by_description = {words: keys for keys, words in keys_of(bindings)}
        assert by_description["the tab of that number"] == "0-9"
        assert by_description["the previous chart"] == "["
        assert by_description["one level back; never quits"] == "Escape q"


async def test_dialogs_have_help_too() -> None:
    async with opened() as console:
        await console.press("o")
        assert console.is_at(CommandDialog)
        for key in ("question_mark", "f1"):
            await console.press(key)
            assert console.is_at(HelpScreen)
            assert "copy the command again" in console.picture
            await console.press("escape")
            assert console.is_at(CommandDialog)


async def test_keys_typed_right_after_a_colon_go_into_the_command_line() -> None:
    async with opened() as console:
        for key in ("colon", "a", "s", "x"):
            console.app.post_message(Key(key, ":" if key == "colon" else key))
        await console.pilot.pause()
        assert console.is_at(CommandLineDialog)
        assert console.app.screen.query_one(Input).value == "asx"
        await console.press("colon")
        assert console.app.screen.query_one(Input).value == "asx:"


@pytest.mark.parametrize("seconds", [0.0, 0.01])
async def test_keys_typed_while_a_screen_opens_wait_for_it(
    monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """A key sent to the earlier focus may reach the screen before its widgets are mounted, or
    before they are laid out."""
    monkeypatch.setattr("console.tui.app._MOUNTING_SECONDS", seconds)
    async with opened() as console:
        console.app.action_help()
        screen = console.app.screen
        await console.app.run_action("scroll('down')", screen)
        await console.until(lambda: screen.query_one("#help").scroll_offset.y == 1)


async def test_help_topics_follow_the_keys_and_open_by_arrows_or_digits(*, long: bool) -> None:
    every = list(topics().values())
    async with opened(size=(120, 200)) as console:
        await console.press("question_mark")
        for topic in every:
            assert f"{topic.name}: " in console.picture
        for topic in every if long else every[:1]:
            await console.press("right")
            assert console.app.screen.query_one("#help").border_title == f"Help: {topic.name}"
            assert console.app.screen.query_one(Markdown).source == topic.text
        await console.press("right" if long else "left")
        assert not console.app.screen.query(Markdown)
        assert ":messages" in console.picture
        await console.press("left")
        assert console.app.screen.query_one(Markdown).source == every[-1].text
        await console.press("3")
        await console.pilot.pause()
        assert "Databases you use every day" in console.picture
        await console.press("escape")
        assert console.is_at(HelpScreen)
        assert not console.app.screen.query(Markdown)
        await console.press("escape")
        assert not console.is_at(HelpScreen)
