"""Help is made from the keys of the screen below it, whichever that is."""

from textual.binding import Binding

from console.tui.screens.help import HelpScreen, keys_of
from console.tui.screens.live import LiveScreen
from tests.tui.alone import alone, is_at, place

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
