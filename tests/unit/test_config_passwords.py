"""Where passwords come from, and that nothing shows them."""

import copy
import getpass
import io
import logging
import os
import pickle
import shlex
import sys
import time
import traceback
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from console.config import passwords
from console.config.passwords import (
    Credentials,
    Keyring,
    PasswordCommand,
    PasswordSource,
    Prompt,
    Secret,
)
from console.config.urls import ConnectionUrl
from console.config.values import WrongValueError
from console.errors import ConnectionFailedError, UsageError
from tests.servers import wait_until

SECRET = "hunter2 \u2603"


def source(text: str) -> PasswordSource:
    return passwords.read_source(text)


def python(code: str) -> str:
    """A `command:` that runs this Python code."""
    return f"command:{shlex.join([sys.executable, '-c', code])}"


def missing(text: str, *complaints: str, **environment: str) -> None:
    """Looking it up fails with all complaints, and without the secret in whatever is left."""
    with pytest.raises(ConnectionFailedError) as failed:
        source(text).look_up("orders", environment)
    assert failed.value.what == "There is no password for orders."
    for complaint in complaints:
        assert complaint in str(failed.value)
    told = "".join(traceback.format_exception(failed.value, chain=True))
    assert SECRET not in told + repr(failed.value.__context__)


def test_a_secret_shows_nothing_and_stays_here() -> None:
    secret = Secret(SECRET)
    assert f"{secret} {secret!r} {[secret]}" == "*** *** [***]"
    assert secret.reveal() == SECRET
    for leave in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="stays in its process"):
            leave(secret)


def test_variables() -> None:
    found = source("a${env:ONE}${env:TWO}").look_up("orders", {"ONE": "1${env:TWO}", "TWO": "2"})
    assert found.reveal() == "a1${env:TWO}2"
    missing("${env:ONE}${env:TWO}", "TWO is not set", ONE=SECRET)


@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\nuser: app\nurl: x\n"])
def test_a_commands_first_line(end: str) -> None:
    code = f"import sys; sys.stdout.buffer.write({(SECRET + end).encode()!r})"
    assert source(python(code)).look_up("orders", os.environ).reveal() == SECRET


def test_a_command_is_no_shells_and_gets_no_input() -> None:
    code = "import sys; print(sys.argv[1:], repr(sys.stdin.read()))"
    found = source(python(code) + " '$HOME' ; x").look_up("orders", os.environ)
    assert found.reveal() == "['$HOME', ';', 'x'] ''"
    told = source(python("import os; print(os.environ['X'])")).look_up("orders", {"X": "y"})
    assert told.reveal() == "y"


def test_what_a_command_says_in_a_failure_is_not_told(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    said = f"import sys; print({SECRET!r}); print({SECRET!r}, file=sys.stderr);"
    missing(python(f"{said} sys.exit(3)"), sys.executable, "exit status 3", "by hand")
    missing(python(f"print(); {said}"), "nothing on its first line")
    missing(python("import sys; sys.stdout.buffer.write(b'\\xff\\n')"), "not UTF-8")
    missing("command:/no/such/program x", "'/no/such/program' cannot be run: No such file")
    missing(f"command:{tmp_path}", "cannot be run: Permission denied")
    assert capfd.readouterr() == ("", "")


def test_a_command_that_does_not_end_is_ended_with_all_that_it_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(passwords, "COMMAND_SECONDS", 1.0)
    pids = tmp_path / "pids"
    code = (
        "import os, subprocess, sys, time;"
        f"print({SECRET!r}, flush=True);"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']);"
        f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}');"
        "time.sleep(60)"
    )
    before = time.monotonic()
    missing(python(code), "did not end within 1 s")
    assert time.monotonic() - before < 20
    command, child = map(int, pids.read_text().split())
    wait_until(lambda: _gone(command) and _gone(child), "both are gone")


def _gone(pid: int) -> bool:
    """Not there, or a zombie that its new parent has yet to look after."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_the_keyring(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def get_password(service: str, user: str) -> str | None:
        asked.append((service, user))
        return SECRET if user == "app" else None

    fake: Any = types.ModuleType("keyring")
    fake.get_password = get_password
    monkeypatch.setitem(sys.modules, "keyring", fake)
    assert source("keyring:https://db/x/app").look_up("orders", {}).reveal() == SECRET
    assert asked == [("https://db/x", "app")]
    missing("keyring:db/other", "nothing for 'db' and 'other'", "keyring set db other")

    def locked(*_: str) -> str:
        raise RuntimeError("it is locked\nand more")

    fake.get_password = locked
    missing("keyring:db/app", "it is locked", "Unlock")


def test_without_the_package_the_keyring_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "keyring", None)
    missing("keyring:db/app", "not installed", "pip install 'dbq-console[keyring]'")


class _Terminal:
    def isatty(self) -> bool:
        return True


Typing = Callable[[Callable[[], str]], list[str]]


@pytest.fixture
def typing(monkeypatch: pytest.MonkeyPatch) -> Typing:
    """A terminal at which this is typed; the questions that were asked there."""

    def at_terminal(typed: Callable[[], str]) -> list[str]:
        questions: list[str] = []

        def ask(question: str) -> str:
            questions.append(question)
            return typed()

        monkeypatch.setattr(sys, "stderr", _Terminal())
        monkeypatch.setattr(getpass, "getpass", ask)
        return questions

    return at_terminal


def given_up() -> str:
    raise EOFError


def in_sight() -> str:
    warnings.warn("it would be seen", getpass.GetPassWarning, stacklevel=2)
    return SECRET


def test_a_prompt(typing: Typing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    missing("prompt", "no terminal")
    asked = typing(lambda: SECRET)
    assert source("prompt").look_up("orders", {}).reveal() == SECRET
    assert asked == ["Password for orders: "]
    typing(given_up)
    missing("prompt", "None was entered")
    typing(in_sight)
    missing("prompt", "no terminal")


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        (SECRET, "not the password"),
        ("", "not the password"),
        ("Prompt", "not the password"),
        (5, "in quotes"),
        ("command:", "PROGRAM"),
        ("command:  ", "PROGRAM"),
        (f"command:show '{SECRET}", "quote"),
        ("keyring:", "SERVICE/USER"),
        ("keyring:/app", "SERVICE/USER"),
        ("keyring:db/", "SERVICE/USER"),
        ("${env:}", "name"),
        ("${env:A B}", "name"),
    ],
)
def test_what_is_no_source_is_refused_and_not_repeated(value: object, complaint: str) -> None:
    with pytest.raises(WrongValueError, match=complaint) as refused:
        passwords.read_source(value)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("text", [f"command:echo '{SECRET}'", f"{SECRET}${{env:X}}"])
def test_a_sources_repr_has_no_secret(text: str) -> None:
    assert SECRET not in repr(source(text))


def test_what_can_be_said_of_a_source() -> None:
    kinds = {text: source(text).kind for text in ("${env:X}", "command:x", "keyring:x/y", "prompt")}
    assert list(kinds.values()) == ["environment", "command", "keyring", "prompt"]
    assert isinstance(source("command:x"), PasswordCommand)
    assert source("keyring:x/y") == Keyring("x", "y")


class _Counted:
    """A source that counts how often it is asked."""

    kind = "counted"

    def __init__(self) -> None:
        self.asked = 0
        self.fails = False

    def look_up(self, label: str, environment: object) -> Secret:  # noqa: ARG002
        self.asked += 1
        if self.fails:
            raise ConnectionFailedError(f"no password for {label}")
        return Secret(f"{SECRET}{self.asked}")


def test_credentials_are_looked_up_late_and_again_when_they_are_old(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted = _Counted()
    credentials = Credentials("orders", ConnectionUrl.read("postgresql://u@h/d"), counted, {})
    credentials.prompt()
    assert counted.asked == 0
    assert credentials().password == credentials().password == f"{SECRET}1"
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 3600)
    assert credentials().password == f"{SECRET}2"
    assert SECRET not in repr(credentials)


def test_a_failure_is_tried_again() -> None:
    counted = _Counted()
    counted.fails = True
    credentials = Credentials("orders", ConnectionUrl.read("postgresql://u@h/d"), counted, {})
    for _ in range(2):
        with pytest.raises(ConnectionFailedError):
            credentials()
    counted.fails = False
    assert credentials().password == f"{SECRET}3"


def test_a_person_is_asked_once_and_at_once(
    typing: Typing, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = typing(lambda: SECRET)
    credentials = Credentials("orders", ConnectionUrl.read("postgresql://u@h/d"), Prompt(), {})
    credentials.prompt()
    assert len(asked) == 1
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 36_000)
    assert credentials().password == SECRET
    assert len(asked) == 1


def test_a_person_who_gives_none_is_not_asked_again(typing: Typing) -> None:
    asked = typing(given_up)
    credentials = Credentials("orders", ConnectionUrl.read("postgresql://u@h/d"), Prompt(), {})
    credentials.prompt()
    for _ in range(2):
        with pytest.raises(ConnectionFailedError, match="None was entered"):
            credentials()
    assert len(asked) == 1


def test_without_a_source_the_url_is_all_there_is() -> None:
    url = ConnectionUrl.read(f"postgresql://u:{'x' * 5}@h/d")
    assert Credentials("orders", url, None, {})().password == "x" * 5


def test_nothing_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    url = ConnectionUrl.read("postgresql://u:${env:PW}@h/d")
    assert Credentials("orders", url, None, {"PW": SECRET})().password == SECRET
    with pytest.raises(UsageError):
        Credentials("orders", url, None, {"PW": SECRET + "\0"})()
    assert SECRET not in caplog.text
