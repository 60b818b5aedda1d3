"""What the screens take from the configuration: saved filters, the theme, colours."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Input

from console.config import load
from console.config.values import COLORS, THEMES
from console.errors import UsageError
from console.filters import Saved
from console.monitor.filters import Filters
from console.tui import commands, terminal
from console.tui.app import ConsoleApp
from console.tui.command import CommandContext, VisibleFilter
from console.tui.context import Setup
from console.tui.dialogs.command_line import completions
from console.tui.open_connection import open_profile
from console.tui.tabs.messages import MessagesTab
from console.tui.terminal import Appearance
from console.tui.text import MARK
from console.verbs import get_verb
from console.verbs.parameters import FILTER
from console.verbs.verb import Target, equivalent_command, values_from_texts
from tests.tui.feeds import FakeFeed, nine_queues, queue
from tests.tui.one_tab import one_tab
from tests.tui.opened import Opened, opened
from tests.tui.test_commands import KEY, CallRecorder, command_context

FILE = """\
# ours
theme = "light"   # by day

[filters]
late = "state=error older=1h"   # in error for long

[queue_filters]
failing = "errors>0"
[groups.shop]
color = "blue"
[profiles.a]
url = "postgresql://u@127.0.0.1:1/a"
group = "shop"
filters.mine = "id=1"
filters.late = "older=2h"
[profiles.b]
url = "postgresql://u@127.0.0.1:1/b"
color = "red"
"""
SAVED = Saved({"late": ("state=error", "older=1h")}, {"failing": "errors>0"})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(FILE)
    return path


def text_of(file: Path) -> str:
    return file.read_text()


async def run_command(console: Opened, line: str) -> None:
    """Run a command after `:`."""
    await console.press("colon")
    console.app.screen.query_one(Input).value = line
    await console.press("enter")


async def type_filter(console: Opened, line: str) -> None:
    """Type a filter after `/`, without Enter."""
    if not console.overview.query_one("#filter").display:
        await console.press("slash")
    console.overview.query_one("#filter", Input).value = line
    await console.pilot.pause()


def last_notification(console: Opened) -> str:
    """The last notification."""
    return [notification.message for notification in console.app._notifications][-1]


async def test_overview_filters_and_themes_are_read_from_the_file_and_saved_there(
    file: Path,
) -> None:
    async with opened(appearance=Appearance("light", saved=SAVED), config_path=file) as console:
        await console.give(*nine_queues())
        assert console.app.theme == "light"
        await run_command(console, "save all")
        assert "no filter here" in console.picture
        await console.press("escape")
        await type_filter(console, "@failing")
        assert set(console.order) == {"mail", "reports"}
        await type_filter(console, "@failing design=claim")
        await console.press("enter")
        assert console.order == ["mail"]
        assert "1 of 9 match @failing design=claim" in console.picture
        await run_command(console, "save failing")
        assert "is taken" in console.picture
        assert text_of(file) == FILE
        await console.press("escape")
        await run_command(console, "save claims")
        assert "@claims after / on the overview" in last_notification(console)
        changed = text_of(file).replace('claims = "errors>0 design=claim"\n', "")
        assert changed == FILE
        await type_filter(console, "@claims")
        assert console.order == ["mail"]
        await type_filter(console, "@nothing")
        assert console.order == []
        assert "Saved filters: @failing, @claims" in console.picture
        await console.press("escape")
        await run_command(console, "theme contrast")
        assert console.app.theme == "contrast"
        assert 'theme = "light"   # by day' in text_of(file)
        await run_command(console, "theme dark --save")
        assert console.app.theme == "dark"
        assert 'theme = "dark"   # by day' in text_of(file)
        assert "The theme is now dark, saved in" in last_notification(console)


@pytest.mark.long
async def test_a_list_of_messages_takes_saved_filters_and_prefers_the_profiles_own(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (a, _) = load({"DBQ_CONFIG": str(file)}).profiles()
    opening = open_profile(a)
    assert opening.conn.filters == {"late": ("older=2h",), "mine": ("id=1",)}
    key = ("a", "public", "mail")
    async with one_tab(MessagesTab, key=key, connections=[opening.conn]) as shown:
        pane = shown.tab
        shown.app.context.saved = SAVED
        requests: list[Any] = []
        monkeypatch.setattr(pane, "_load", lambda request, **_: requests.append(request))
        for line, meant in (
            ("@late limit=3", Filters(older=7200.0, limit=3)),
            ("@mine", Filters(ids=("1",))),
            ("@mind", Filters(ids=("1",))),
        ):
            await shown.press("slash")
            pane.query_one(Input).value = line
            await shown.press("enter")
            assert requests[-1].filters == meant
        shown.shows("no saved filter 'mind'", "Did you mean: @mine")


def with_filters(key: Any = KEY, **more: Any) -> tuple[CommandContext, CallRecorder]:
    context, navigator = command_context(key)
    context.context.saved = SAVED
    return CommandContext(context.context, key, context.themes, **more), navigator


def test_commands_take_saved_filters() -> None:
    cases: list[tuple[str, tuple[Any, ...]]] = [
        ("q mail @late", ("open_messages", KEY, ["state=error", "older=1h"])),
        ("messages @late id=1", ("open_messages", KEY, ["state=error", "older=1h", "id=1"])),
        ("actions @late", ("open_actions", KEY, ["state=error", "older=1h"])),
        ("purge mail @late", ("open_action", KEY, "purge", ["state=error", "older=1h"])),
        ("purge --filter @late", ("open_action", KEY, "purge", ["state=error", "older=1h"])),
        ("push mail @late", ("open_action", KEY, "push", [], {"payload": "@late"})),
        ("theme light", ("choose_theme", "light")),
    ]
    for line, call in cases:
        context, navigator = with_filters()
        commands.run(context, line)
        assert navigator.calls == [call], line


def test_wrong_uses_of_saved_filters_are_explained() -> None:
    context, _ = with_filters()
    for line, words in (
        ("q mail @lat", "Did you mean: @late?"),
        ("q @lat", "no saved filter 'lat'"),
        ("purge @nothing", "There are: late."),
        ("save", "Under which name?"),
        ("save a b", "is not understood"),
        ("save a", "no configuration file"),
        ("theme light --save", "no configuration file"),
        ("theme light --keep", "is not understood"),
    ):
        with pytest.raises(UsageError) as wrong:
            commands.run(context, line)
        assert words in str(wrong.value), line


def test_a_filter_of_messages_is_saved_in_its_table_and_known_at_once(file: Path) -> None:
    context, navigator = with_filters(
        visible_filter=VisibleFilter("filters", 'error~"no route" id=1')
    )
    context.context.config_path = file
    commands.run(context, "save @routes")
    assert 'routes = "error~\\"no route\\" id=1"\n' in text_of(file)
    assert text_of(file).replace('routes = "error~\\"no route\\" id=1"\n', "") == FILE
    commands.run(context, "q mail @routes")
    assert navigator.calls[-1] == ("open_messages", KEY, ["error~no route", "id=1"])
    assert load({"DBQ_CONFIG": str(file)}).saved.messages["routes"] == ("error~no route", "id=1")


def test_saved_filters_and_the_option_save_are_completed() -> None:
    context, _ = with_filters()
    assert completions(context, "purge mail @") == ["purge mail @late"]
    assert completions(context, "theme light ") == ["theme light --save"]
    nowhere, _ = with_filters(None)
    assert nowhere.filters == nowhere.context.filters(("gone", "s", "q")) == SAVED.messages


def test_a_form_takes_saved_filters_and_its_equivalent_command_names_them() -> None:
    verb, texts = get_verb("purge"), {"filter": "@late 'error~no route'"}
    FILTER.check(texts["filter"])
    given = values_from_texts(verb, texts)
    target = Target(None, None, saved=SAVED.messages)  # type: ignore[arg-type]
    assert target.filters(given).words == ("state=error", "older=3600s", "error~no route")
    assert "--filter @late" in equivalent_command(verb, (), "public", "mail", texts)
    with pytest.raises(UsageError, match="no saved filter 'late'"):
        replace(target, saved={}).filters(given)


# The theme.


def test_the_configuration_knows_the_themes_and_each_has_every_colour() -> None:
    assert tuple(theme.name for theme in terminal.THEMES) == THEMES
    for theme in terminal.THEMES:
        assert {f"mark-{color}" for color in COLORS} <= set(theme.variables)


# Colours.


def marks(console: Opened) -> set[str]:
    """The colours of the marks that are on the screen."""
    strips = console.app.screen._compositor.render_strips()
    segments = [segment for strip in strips for segment in strip]
    found = {segment.style.color for segment in segments if MARK in segment.text and segment.style}
    return {color.get_truecolor().hex for color in found if color}


def colour(app: ConsoleApp, name: str) -> str:
    return app.theme_variables[f"mark-{name}"].lower()


async def test_connections_have_the_marks_of_their_profiles_beside_their_names(file: Path) -> None:
    openings = [open_profile(profile) for profile in load({"DBQ_CONFIG": str(file)}).profiles()]
    connections = [connection.conn for connection in openings]
    assert [connection.color for connection in connections] == ["blue", "red"]
    async with opened("a", "b", connections=connections, production=["b"]) as console:
        for feed in console.feeds:
            feed.give(queue("mail"))
        await console.pilot.pause()
        both = {colour(console.app, "blue"), colour(console.app, "red")}
        assert marks(console) == both
        console.shows(f"● {MARK}b   PRODUCTION ", f"{MARK}a › mail")  # noqa: RUF001  # the sign between two names
        await console.press("v")
        assert f"{MARK}  ▾ a: 1 queue" in console.picture
        await console.press("c")
        assert marks(console) == both
        assert f"{MARK}b  " in console.picture
        await run_command(console, "theme contrast")
        # Styles are updated and drawn widget by widget.
        await console.until(
            lambda: (
                marks(console) == {colour(console.app, name) for name in ("blue", "red")} != both
            )
        )


@pytest.mark.parametrize(("value", "no_color"), [("", False), ("0", True), ("1", True)])
def test_no_color_removes_the_marks_unless_it_is_empty(
    value: str, no_color: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As specified: https://no-color.org."""
    monkeypatch.setenv("NO_COLOR", value)
    app = ConsoleApp([FakeFeed("prod")], Setup(appearance=Appearance(colors={"prod": "red"})))
    assert app.no_color is no_color
    assert [connection.color for connection in app.context.store.connections(0.0)] == [
        "" if no_color else "red"
    ]
