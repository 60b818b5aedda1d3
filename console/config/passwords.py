"""Where passwords come from. None is looked up before a connection wants it; none is ever shown."""

from __future__ import annotations

import getpass
import importlib
import shlex
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, runtime_checkable

from console import processes
from console.config.urls import VARIABLE, ConnectionUrl, check_variable
from console.config.values import WrongValueError
from console.errors import ConnectionFailedError, UsageError

if TYPE_CHECKING:
    from sqlalchemy import URL

_KEPT_SECONDS = 60.0
"""A password is not looked up again for every connection, but tokens that expire are replaced."""


class Secret:
    """A text that only `reveal` tells."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The text itself, for the driver."""
        return self._text

    def __repr__(self) -> str:
        """Nothing of it, not even its length."""
        return "***"

    def __reduce__(self) -> NoReturn:
        """Refused: a secret stays in its process."""
        raise TypeError("a secret stays in its process")


COMMAND_SECONDS = 60.0
"""How long a command may take: somebody may have to unlock a key."""


def command_words(text: str, kind: str = "command") -> tuple[str, ...]:
    """What comes after `command:`, or another kind. Raises WrongValueError."""
    try:
        words = tuple(shlex.split(text))
    except ValueError:
        raise WrongValueError(f'wants "{kind}:PROGRAM ..."; a quote is not closed') from None
    if not words:
        raise WrongValueError(f'wants "{kind}:PROGRAM ..."')
    return words


def output(words: tuple[str, ...], environment: Mapping[str, str]) -> tuple[str, str]:
    """What such a program prints, or why there is nothing.

    No error leaves this: those of `subprocess` hold the output, which may be a password.
    """
    try:
        with processes.program(words, environment, stdout=subprocess.PIPE) as running:
            printed, _ = running.communicate(timeout=COMMAND_SECONDS)
    except (OSError, ValueError) as error:
        return "", f"cannot be run: {getattr(error, 'strerror', None) or 'it holds NUL'}"
    except subprocess.TimeoutExpired:
        return "", f"did not end within {COMMAND_SECONDS:g} s"
    if running.returncode:
        return "", f"ended with exit status {running.returncode}"
    try:
        return printed.decode(), ""
    except UnicodeDecodeError:
        return "", "printed what is not UTF-8"


@runtime_checkable
class PasswordSource(Protocol):
    """Where one connection's password comes from."""

    @property
    def kind(self) -> str:
        """What it is, for people."""

    def look_up(self, label: str, environment: Mapping[str, str]) -> Secret:
        """The password of the connection of that name. ConnectionFailedError: not to be had."""


@dataclass(frozen=True, repr=False)
class Variables:
    """A text with `${env:NAME}` in it."""

    kind = "environment"
    _text: str

    def look_up(self, label: str, environment: Mapping[str, str]) -> Secret:
        """The text with its variables put in."""
        for name in VARIABLE.findall(self._text):
            if name not in environment:
                raise _missing(
                    label, f"The environment variable {name} is not set.", f"Set {name}."
                )
        return Secret(VARIABLE.sub(lambda found: environment[found[1]], self._text))


@dataclass(frozen=True, repr=False)
class PasswordCommand:
    """A program whose first line of output is the password."""

    kind = "command"
    _words: tuple[str, ...]

    def look_up(self, label: str, environment: Mapping[str, str]) -> Secret:
        """The first line that it prints."""
        printed, why = output(self._words, environment)
        first = printed.partition("\n")[0].removesuffix("\r")
        if not first:
            why = why or "printed nothing on its first line"
            raise _missing(
                label,
                f"The command {self._words[0]!r} {why}.",
                "Run it by hand to see what it says; it gets no input and must print the password "
                "on its first line.",
            )
        return Secret(first)


@dataclass(frozen=True)
class Keyring:
    """The desktop's or the system's keyring, through the package `keyring`."""

    kind = "keyring"
    service: str
    user: str

    def look_up(self, label: str, environment: Mapping[str, str]) -> Secret:  # noqa: ARG002
        """What the keyring holds for the service and the user."""
        try:
            keyring: Any = importlib.import_module("keyring")
        except ImportError:
            raise _missing(
                label,
                "The package keyring is not installed.",
                "Install it where dbq-console is: pip install 'dbq-console[keyring]'",
            ) from None
        try:
            found = keyring.get_password(self.service, self.user)
        except Exception as error:  # noqa: BLE001  # each of its backends has errors of its own
            why = str(error).partition("\n")[0] or type(error).__name__
            raise _missing(
                label,
                f"The keyring cannot be read: {why}",
                "Unlock it or set it up, then try again.",
            ) from None
        if not found:
            raise _missing(
                label,
                f"The keyring has nothing for {self.service!r} and {self.user!r}.",
                f"Put it there: keyring set {shlex.quote(self.service)} {shlex.quote(self.user)}",
            )
        return Secret(found)


@dataclass(frozen=True)
class Prompt:
    """The person at the terminal."""

    kind = "prompt"

    def look_up(self, label: str, environment: Mapping[str, str]) -> Secret:  # noqa: ARG002
        """What is typed, unseen. Without a terminal nobody can be asked."""
        if sys.stderr is None or not sys.stderr.isatty():
            raise _missing(label, _NO_TERMINAL)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", getpass.GetPassWarning)
                return Secret(getpass.getpass(f"Password for {label}: "))
        except EOFError:
            raise _missing(label, "None was entered.") from None
        except (getpass.GetPassWarning, OSError):
            raise _missing(label, _NO_TERMINAL) from None


_NO_TERMINAL = "It has to be typed in, and there is no terminal."


def read_source(value: Any) -> PasswordSource:
    """Where a profile's `password` says that it comes from. Raises WrongValueError."""
    if not isinstance(value, str):
        raise WrongValueError(f"must be a text in quotes: {_FORMS}")
    kind, _, rest = value.partition(":")
    if value == "prompt":
        return Prompt()
    if kind == "command":
        return PasswordCommand(command_words(rest))
    if kind == "keyring":
        service, _, user = rest.rpartition("/")
        if not service or not user:
            raise WrongValueError('wants "keyring:SERVICE/USER"')
        return Keyring(service, user)
    if VARIABLE.search(value):
        check_variables(value)
        return Variables(value)
    raise WrongValueError(f"must say where the password is, not the password itself: {_FORMS}")


def check_variables(text: str) -> None:
    """Raises WrongValueError where one in it cannot be a variable."""
    for name in VARIABLE.findall(text):
        try:
            check_variable(name)
        except UsageError as error:
            raise WrongValueError(f"needs a variable's name: {error.why}") from None


_FORMS = '"${env:NAME}", "command:PROGRAM ...", "keyring:SERVICE/USER" or "prompt"'


def _missing(label: str, why: str, next_step: str = "") -> ConnectionFailedError:
    return ConnectionFailedError(f"There is no password for {label}.", why=why, next_step=next_step)


class Credentials:
    """Completes a connection's URL each time that connections are to be opened by it."""

    def __init__(
        self,
        label: str,
        url: ConnectionUrl,
        source: PasswordSource | None,
        environment: Mapping[str, str],
    ) -> None:
        self._label = label
        self._url = url
        self._source = source
        self._environment = environment
        self._lock = threading.Lock()
        self._found: Secret | ConnectionFailedError | None = None
        self._found_at = 0.0

    def ask(self) -> None:
        """Where a person must type the password: now, while nothing else uses the terminal.

        A failure is told when the connection is opened, so that it is that connection's own.
        """
        if isinstance(self._source, Prompt):
            with suppress(ConnectionFailedError):
                self._password()

    @property
    def kind(self) -> str:
        """Where the password comes from, for people; empty: the driver's own ways."""
        return "" if self._source is None else self._source.kind

    @property
    def needs_typing(self) -> bool:
        """Whether a person must type the password, and none has."""
        return isinstance(self._source, Prompt) and not isinstance(self._found, Secret)

    @property
    def is_typed(self) -> bool:
        """Whether a person types the password."""
        return isinstance(self._source, Prompt)

    def defer_typing(self) -> None:
        """Where a person must type the password: not at the terminal, but by `give`."""
        if isinstance(self._source, Prompt) and self._found is None:
            self._found = _missing(
                self._label, "It has to be typed in.", "Log in on the screen Connections."
            )

    def give(self, password: Secret) -> None:
        """What a person has typed; it replaces what was typed before."""
        with self._lock:
            self._found = password
            self._found_at = time.monotonic()

    def __call__(self) -> URL:
        """The URL with everything in it, for the driver. ConnectionFailedError."""
        password = self._password()
        return self._url.complete(
            self._environment, None if password is None else password.reveal()
        )

    def _password(self) -> Secret | None:
        source = self._source
        if source is None:
            return None
        with self._lock:
            if isinstance(source, Prompt):  # nobody is asked twice
                fresh = self._found is not None
            else:
                fresh = isinstance(self._found, Secret) and (
                    time.monotonic() - self._found_at < _KEPT_SECONDS
                )
            if not fresh:
                try:
                    self._found = source.look_up(self._label, self._environment)
                except ConnectionFailedError as error:
                    self._found = error
                self._found_at = time.monotonic()
            if isinstance(self._found, ConnectionFailedError):
                raise self._found
            return self._found
