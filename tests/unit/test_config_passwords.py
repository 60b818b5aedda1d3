"""The sources of passwords, and that nothing shows them."""

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


def assert_lookup_fails(text: str, *complaints: str, **environment: str) -> None:
    """The lookup fails with all complaints, and its traceback has no secret."""
    with pytest.raises(ConnectionFailedError) as failed:
        source(text).look_up("orders", environment)
    assert failed.value.what == "There is no password for orders."
    for complaint in complaints:
        assert complaint in str(failed.value)
    shown = "".join(traceback.format_exception(failed.value, chain=True))
    assert SECRET not in shown + repr(failed.value.__context__)


def test_a_secret_is_masked_and_cannot_be_copied_or_pickled() -> None:
    secret = Secret(SECRET)
    assert f"{secret} {secret!r} {[secret]}" == "*** *** [***]"
    assert secret.reveal() == SECRET
    for duplicate in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="stays in its process"):
            duplicate(secret)


def test_variables_are_substituted_once() -> None:
    secret = source("a${env:ONE}${env:TWO}").look_up("orders", {"ONE": "1${env:TWO}", "TWO": "2"})
    assert secret.reveal() == "a1${env:TWO}2"
    assert_lookup_fails("${env:ONE}${env:TWO}", "TWO is not set", ONE=SECRET)


@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\nuser: app\nurl: x\n"])
def test_the_first_line_of_a_commands_output_is_the_password(end: str) -> None:
    code = f"import sys; sys.stdout.buffer.write({(SECRET + end).encode()!r})"
    assert source(python(code)).look_up("orders", os.environ).reveal() == SECRET


def test_a_command_runs_without_a_shell_and_without_input() -> None:
    code = "import sys; print(sys.argv[1:], repr(sys.stdin.read()))"
    secret = source(python(code) + " '$HOME' ; x").look_up("orders", os.environ)
    assert secret.reveal() == "['$HOME', ';', 'x'] ''"
    password = source(python("import os; print(os.environ['X'])")).look_up("orders", {"X": "y"})
    assert password.reveal() == "y"


def test_the_output_of_a_failed_command_is_not_shown(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    print_secret = f"import sys; print({SECRET!r}); print({SECRET!r}, file=sys.stderr);"
    assert_lookup_fails(
        python(f"{print_secret} sys.exit(3)"), sys.executable, "exit status 3", "by hand"
    )
    assert_lookup_fails(python(f"print(); {print_secret}"), "nothing on its first line")
    assert_lookup_fails(python("import sys; sys.stdout.buffer.write(b'\\xff\\n')"), "not UTF-8")
    assert_lookup_fails(
        "command:/no/such/program x", "'/no/such/program' cannot be run: No such file"
    )
    assert_lookup_fails(f"command:{tmp_path}", "cannot be run: Permission denied")
    assert capfd.readouterr() == ("", "")


def test_a_hanging_command_is_killed_with_its_children(
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
    assert_lookup_fails(python(code), "did not end within 1 s")
    assert time.monotonic() - before < 20
    command, child = map(int, pids.read_text().split())
    wait_until(lambda: _gone(command) and _gone(child), "both are gone")


def _gone(pid: int) -> bool:
    """No such process, or a zombie that is not reaped yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_passwords_are_looked_up_in_the_keyring(monkeypatch: pytest.MonkeyPatch) -> None:
    requested = []

    def get_password(service: str, user: str) -> str | None:
        requested.append((service, user))
        return SECRET if user == "app" else None

    fake: Any = types.ModuleType("keyring")
    fake.get_password = get_password
    monkeypatch.setitem(sys.modules, "keyring", fake)
    assert source("keyring:https://db/x/app").look_up("orders", {}).reveal() == SECRET
    assert requested == [("https://db/x", "app")]
    assert_lookup_fails("keyring:db/other", "nothing for 'db' and 'other'", "keyring set db other")

    def locked(*_: str) -> str:
        raise RuntimeError("it is locked\nand more")

    fake.get_password = locked
    assert_lookup_fails("keyring:db/app", "it is locked", "Unlock")


def test_a_missing_keyring_package_is_an_error_that_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "keyring", None)
    assert_lookup_fails("keyring:db/app", "not installed", "pip install 'dbq-console[keyring]'")


class _Terminal:
    def isatty(self) -> bool:
        return True


Typing = Callable[[Callable[[], str]], list[str]]


@pytest.fixture
def typing(monkeypatch: pytest.MonkeyPatch) -> Typing:
    """Simulates a terminal with this input; returns its prompts."""

    def at_terminal(typed: Callable[[], str]) -> list[str]:
        prompts: list[str] = []

        def get_password(prompt: str) -> str:
            prompts.append(prompt)
            return typed()

        monkeypatch.setattr(sys, "stderr", _Terminal())
        monkeypatch.setattr(getpass, "getpass", get_password)
        return prompts

    return at_terminal


def no_input() -> str:
    raise EOFError


def echoed() -> str:
    warnings.warn("it would be seen", getpass.GetPassWarning, stacklevel=2)
    return SECRET


def test_a_password_is_prompted_for_on_a_terminal_only(
    typing: Typing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert_lookup_fails("prompt", "no terminal")
    prompts = typing(lambda: SECRET)
    assert source("prompt").look_up("orders", {}).reveal() == SECRET
    assert prompts == ["Password for orders: "]
    typing(no_input)
    assert_lookup_fails("prompt", "None was entered")
    typing(echoed)
    assert_lookup_fails("prompt", "no terminal")


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
def test_an_invalid_source_is_refused_without_repeating_it(value: object, complaint: str) -> None:
    with pytest.raises(WrongValueError, match=complaint) as refused:
        passwords.read_source(value)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("text", [f"command:echo '{SECRET}'", f"{SECRET}${{env:X}}"])
def test_a_sources_repr_has_no_secret(text: str) -> None:
    assert SECRET not in repr(source(text))


def test_each_source_has_its_kind() -> None:
    kinds = {text: source(text).kind for text in ("${env:X}", "command:x", "keyring:x/y", "prompt")}
    assert list(kinds.values()) == ["environment", "command", "keyring", "prompt"]
    assert isinstance(source("command:x"), PasswordCommand)
    assert source("keyring:x/y") == Keyring("x", "y")


class _Counted:
    """A source that counts its lookups."""

    kind = "counted"

    def __init__(self) -> None:
        self.lookups = 0
        self.fails = False

    def look_up(self, label: str, environment: object) -> Secret:  # noqa: ARG002
        self.lookups += 1
        if self.fails:
            raise ConnectionFailedError(f"no password for {label}")
        return Secret(f"{SECRET}{self.lookups}")


def test_credentials_are_looked_up_on_first_use_and_again_when_old(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted = _Counted()
    credentials = Credentials("orders", ConnectionUrl.read("postgresql://u@h/d"), counted, {})
    credentials.prompt()
    assert counted.lookups == 0
    assert credentials().password == credentials().password == f"{SECRET}1"
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 3600)
    assert credentials().password == f"{SECRET}2"
    assert SECRET not in repr(credentials)


def test_a_failed_lookup_is_retried() -> None:
    counted = _Counted()
    counted.fails = True
    credentials = Credentials("orders", ConnectionUrl.read("postgresql://u@h/d"), counted, {})
    for _ in range(2):
        with pytest.raises(ConnectionFailedError):
            credentials()
    counted.fails = False
    assert credentials().password == f"{SECRET}3"


def test_a_user_is_prompted_once_and_in_advance(
    typing: Typing, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = typing(lambda: SECRET)
    credentials = Credentials("orders", ConnectionUrl.read("postgresql://u@h/d"), Prompt(), {})
    credentials.prompt()
    assert len(prompts) == 1
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 36_000)
    assert credentials().password == SECRET
    assert len(prompts) == 1


def test_a_cancelled_prompt_is_not_repeated(typing: Typing) -> None:
    prompts = typing(no_input)
    credentials = Credentials("orders", ConnectionUrl.read("postgresql://u@h/d"), Prompt(), {})
    credentials.prompt()
    for _ in range(2):
        with pytest.raises(ConnectionFailedError, match="None was entered"):
            credentials()
    assert len(prompts) == 1


def test_without_a_source_the_password_of_the_url_is_used() -> None:
    url = ConnectionUrl.read(f"postgresql://u:{'x' * 5}@h/d")
    assert Credentials("orders", url, None, {})().password == "x" * 5


def test_no_secret_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    url = ConnectionUrl.read("postgresql://u:${env:PW}@h/d")
    assert Credentials("orders", url, None, {"PW": SECRET})().password == SECRET
    with pytest.raises(UsageError):
        Credentials("orders", url, None, {"PW": SECRET + "\0"})()
    assert SECRET not in caplog.text
