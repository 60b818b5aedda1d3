"""Sources of passwords, which are looked up only when a connection is opened and never shown."""

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

from console.config.programs import program
from console.config.urls import VARIABLE, ConnectionUrl, check_variable
from console.config.values import WrongValueError
from console.errors import ConnectionFailedError, UsageError

if TYPE_CHECKING:
    from sqlalchemy import URL

_KEPT_SECONDS = 60.0
"""Between look-ups: not one per connection, but expired tokens are replaced."""


class Secret:
    """A text that only `reveal` returns."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The text itself, for the driver."""
        return self._text

    def __repr__(self) -> str:
        """Hides even its length."""
        return "***"

    def __reduce__(self) -> NoReturn:
        """TypeError: a secret stays in its process."""
        raise TypeError("a secret stays in its process")


COMMAND_SECONDS = 60.0
"""How long a command may take: someone may have to unlock a key."""


def command_words(text: str, kind: str = "command") -> tuple[str, ...]:
    """The words after `command:` or another prefix. WrongValueError."""
    try:
        words = tuple(shlex.split(text))
    except ValueError:
        raise WrongValueError(f'must be "{kind}:PROGRAM ..."; a quote is not closed') from None
    if not words:
        raise WrongValueError(f'must be "{kind}:PROGRAM ..."')
    return words


def output(words: tuple[str, ...], environment: Mapping[str, str]) -> tuple[str, str]:
    """The program's output, and the reason if it failed.

    It raises nothing: errors of `subprocess` contain the output, which may be a password.
    """
    try:
        with program(words, environment, stdout=subprocess.PIPE) as running:
            printed, _ = running.communicate(timeout=COMMAND_SECONDS)
    except (OSError, ValueError) as error:
        return "", f"cannot be run: {getattr(error, 'strerror', None) or 'it contains NUL'}"
    except subprocess.TimeoutExpired:
        return "", f"did not end within {COMMAND_SECONDS:g} s"
    if running.returncode:
        return "", f"ended with exit status {running.returncode}"
    try:
        return printed.decode(), ""
    except UnicodeDecodeError:
        return "", "printed text that is not UTF-8"


@runtime_checkable
class PasswordSource(Protocol):
    """The source of a connection's password."""

    @property
    def kind(self) -> str:
        """Its type, for display."""

    def look_up(self, label: str, environment: Mapping[str, str]) -> Secret:
        """The password of the connection of that label. ConnectionFailedError."""


@dataclass(frozen=True, repr=False)
class Variables:
    """A text with `${env:NAME}` in it."""

    kind = "environment"
    _text: str

    def look_up(self, label: str, environment: Mapping[str, str]) -> Secret:
        """The text with its variables inserted."""
        for name in VARIABLE.findall(self._text):
            if name not in environment:
                raise _missing(
                    label, f"The environment variable {name} is not set.", f"Set {name}."
                )
        return Secret(VARIABLE.sub(lambda match: environment[match[1]], self._text))


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
                "Run it by hand to see its output; it gets no input and must print the password "
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
        """The keyring's entry for the service and the user."""
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
        except Exception as error:  # noqa: BLE001  # each backend has its own errors
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
    """A prompt on the terminal."""

    kind = "prompt"

    def look_up(self, label: str, environment: Mapping[str, str]) -> Secret:  # noqa: ARG002
        """The password typed, without echo. ConnectionFailedError without a terminal."""
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


_NO_TERMINAL = "It must be typed in, but there is no terminal."


def read_source(value: Any) -> PasswordSource:
    """The source named by a profile's `password`. WrongValueError."""
    if not isinstance(value, str):
        raise WrongValueError(f"must be a string in quotes: {_FORMS}")
    kind, _, rest = value.partition(":")
    if value == "prompt":
        return Prompt()
    if kind == "command":
        return PasswordCommand(command_words(rest))
    if kind == "keyring":
        service, _, user = rest.rpartition("/")
        if not service or not user:
            raise WrongValueError('must be "keyring:SERVICE/USER"')
        return Keyring(service, user)
    if VARIABLE.search(value):
        check_variables(value)
        return Variables(value)
    raise WrongValueError(f"must say where the password is, not the password itself: {_FORMS}")


def check_variables(text: str) -> None:
    """WrongValueError for a `${env:NAME}` with an invalid name."""
    for name in VARIABLE.findall(text):
        try:
            check_variable(name)
        except UsageError as error:
            raise WrongValueError(f"needs a variable's name: {error.why}") from None


_FORMS = '"${env:NAME}", "command:PROGRAM ...", "keyring:SERVICE/USER" or "prompt"'


def _missing(label: str, why: str, next_step: str = "") -> ConnectionFailedError:
    return ConnectionFailedError(f"There is no password for {label}.", why=why, next_step=next_step)


class Credentials:
    """Completes a connection's URL whenever it is opened."""

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

    def prompt(self) -> None:
        """Prompt for the password now, if it must be typed, while nothing else uses the terminal.

        A failure is raised when the connection is opened.
        """
        if isinstance(self._source, Prompt):
            with suppress(ConnectionFailedError):
                self._password()

    @property
    def kind(self) -> str:
        """The type of the password's source, for display; empty: left to the driver."""
        return "" if self._source is None else self._source.kind

    @property
    def needs_typing(self) -> bool:
        """Whether the password must be typed and has not been."""
        return isinstance(self._source, Prompt) and not isinstance(self._found, Secret)

    @property
    def is_typed(self) -> bool:
        """Whether the password is typed by a user."""
        return isinstance(self._source, Prompt)

    def defer_typing(self) -> None:
        """Do not prompt on the terminal: the password will be set by `set_password`."""
        if isinstance(self._source, Prompt) and self._found is None:
            self._found = _missing(
                self._label, "It must be typed in.", "Log in on the screen Connections."
            )

    def set_password(self, password: Secret) -> None:
        """Set the password that was typed."""
        with self._lock:
            self._found = password
            self._found_at = time.monotonic()

    def __call__(self) -> URL:
        """The complete URL for the driver. ConnectionFailedError."""
        password = self._password()
        return self._url.complete(
            self._environment, None if password is None else password.reveal()
        )

    def _password(self) -> Secret | None:
        source = self._source
        if source is None:
            return None
        with self._lock:
            if isinstance(source, Prompt):  # prompt only once
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
