"""The screens for configured connections, on a real terminal."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pexpect  # type: ignore[import-untyped]
import pytest
from sqlalchemy import make_url

from tests.cli.calls import COMMAND, Console
from tests.servers import PATIENCE_SECONDS

SECRET = "hunter2"
DOWN = "postgresql+psycopg://u@127.0.0.1:1/d"

pytestmark = pytest.mark.long

Spawn = Callable[..., "pexpect.spawn[str]"]


@pytest.fixture
def spawn(tmp_path: Path) -> Spawn:
    """The console on its own terminal, with the configuration of the test."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("DBQ_", "PG"))}
    more = {"XDG_CONFIG_HOME": str(tmp_path), "TERM": "xterm-256color", "COLORTERM": ""}

    def spawn_configured(*arguments: str, **environment: str) -> "pexpect.spawn[str]":
        return pexpect.spawn(
            sys.executable,
            [*COMMAND[1:], *arguments],
            env=kept | more | environment,
            dimensions=(24, 140),
            encoding="utf-8",
            timeout=PATIENCE_SECONDS,
        )

    return spawn_configured


def quit_by_key(console: "pexpect.spawn[str]") -> str:
    console.send("\x11")
    console.expect(pexpect.EOF)
    console.close()
    assert console.exitstatus == 0
    return str(console.before)


def profile(url: str, password: str) -> str:
    """A profile `prod` of that URL, with its password from elsewhere."""
    bare = make_url(url)
    shown = bare.set(password="").render_as_string(hide_password=False)
    return (
        f"[profiles.prod]\nurl = '{shown}'\nrights = 'operator'\nproduction = true\n"
        f"password = '{password}'\n"
    )


def test_without_arguments_all_configured_connections_are_opened(
    spawn: Spawn, file: Path, empty: Console, tmp_path: Path
) -> None:
    empty.done("install", "fifo", "letters")
    token = tmp_path / "token"
    token.write_text(str(make_url(empty.url).password))
    down = f"[profiles.down]\nurl = '{DOWN}'\nproduction = true\n"
    text = 'interval = "1500ms"\n' + profile(empty.url, f"command:cat {token}") + down
    file.write_text(text)
    console = spawn()
    shown_text = ""
    for words in ("prod", "PRODUCTION", "operator", "down", "PRODUCTION", "read-only", "letters"):
        console.expect(words)
        shown_text += str(console.before)
    assert "every 1.5 s" in shown_text
    shown_text += quit_by_key(console)
    assert token.read_text() not in shown_text


def test_a_named_profile_is_the_only_connection_opened(
    spawn: Spawn, file: Path, empty: Console
) -> None:
    empty.done("install", "fifo", "letters")
    down = f"[profiles.down]\nurl = '{DOWN}'\nproduction = true\n"
    file.write_text(profile(empty.url, "prompt") + down)
    console = spawn(DBQ_PROFILE="down")
    console.expect("no connection")
    assert "letters" not in str(console.before)
    quit_by_key(console)


def test_a_url_is_opened_read_only_unless_rights_are_given(
    spawn: Spawn, file: Path, empty: Console
) -> None:
    file.write_text(f"[profiles.down]\nurl = '{DOWN}'\n")
    for words, environment, rights in (
        (["--url", empty.url], {}, "read-only"),
        ([], {"DBQ_URL": empty.url}, "read-only"),
        (["--url", empty.url, "--rights", "operator"], {}, "operator"),
        (["--rights", "admin"], {"DBQ_URL": empty.url}, "admin"),
    ):
        console = spawn(*words, **environment)
        # A busy machine draws them in either order.
        awaited = [rights, "no queues here yet"]
        while awaited:
            del awaited[console.expect(awaited)]
        quit_by_key(console)


def test_a_dumb_terminal_is_refused_in_one_line(spawn: Spawn) -> None:
    for arguments in ([], ["demo"], ["--url", DOWN]):
        console = spawn(*arguments, TERM="dumb")
        console.expect(pexpect.EOF)
        console.close()
        assert console.exitstatus == 2
        assert str(console.before).count("\n") == 1
        assert "TERM is dumb" in str(console.before)


def test_the_screen_prompts_for_a_password(spawn: Spawn, file: Path, empty: Console) -> None:
    file.write_text(profile(empty.url, "prompt"))
    console = spawn()
    console.expect("Log in to prod")
    console.expect("until it quits")
    console.send(str(make_url(empty.url).password) + "\r")
    console.expect("no queues here yet")
    shown_text = str(console.before) + quit_by_key(console)
    assert str(make_url(empty.url).password) not in shown_text


def test_without_connections_the_screen_says_where_to_configure_them(
    spawn: Spawn, file: Path
) -> None:
    console = spawn()
    console.expect("No connection is configured")
    console.expect("Connections are kept in")
    console.expect(str(file)[:60])
    quit_by_key(console)


def test_a_configuration_mistake_is_reported_without_a_screen(spawn: Spawn, file: Path) -> None:
    file.write_text(f'[profiles.p]\nurl = "postgresql://u:{SECRET}@h/d"\n')
    console = spawn()
    console.expect(pexpect.EOF)
    console.close()
    shown_text = str(console.before)
    assert console.exitstatus == 2
    assert "profiles.p.url has a password in clear" in shown_text
    assert SECRET not in shown_text
    assert "\x1b[?1049h" not in shown_text
