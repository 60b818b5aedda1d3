"""Fleets: profiles that differ by their host. Each is `FLEET/HOST`, in the group of the fleet."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from console.config.commands import command_words, output
from console.config.kinds import WrongValueError, named
from console.errors import UsageError

HOST = "{host}"
"""What stands for the host in the URL of a fleet."""

_HOST = re.compile(r"(?:[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")
_WAYS = '["db1", "db2:5433"], "file:PATH" or "command:PROGRAM ..."'


class Hosts(Protocol):
    """Where the hosts of a fleet come from."""

    def look_up(self, folder: Path, environment: Mapping[str, str]) -> tuple[str, ...]:
        """All of them, in their order. UsageError: not to be had."""
        ...


@dataclass(frozen=True)
class HostList:
    """Those that the configuration names."""

    hosts: tuple[str, ...]

    def look_up(self, folder: Path, environment: Mapping[str, str]) -> tuple[str, ...]:  # noqa: ARG002
        """Themselves."""
        return self.hosts


@dataclass(frozen=True)
class HostFile:
    """A file with a host a line; what follows a # is a comment."""

    path: str

    def look_up(self, folder: Path, environment: Mapping[str, str]) -> tuple[str, ...]:  # noqa: ARG002
        """As the file has them now; a path that is not absolute begins in `folder`."""
        path = folder / Path(self.path).expanduser()
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "It is not UTF-8."
            raise UsageError(f"The file of hosts {str(path)!r} cannot be read.", why=why) from None
        return _lines(text, str(path))


@dataclass(frozen=True)
class HostCommand:
    """A program that prints a host a line."""

    words: tuple[str, ...]

    def look_up(self, folder: Path, environment: Mapping[str, str]) -> tuple[str, ...]:  # noqa: ARG002
        """As it prints them now."""
        printed, why = output(self.words, environment)
        if why:
            raise UsageError(
                f"The command {self.words[0]!r}, which should print hosts, {why}.",
                next_step="Run it by hand to see what it says; it gets no input.",
            )
        return _lines(printed, self.words[0])


def read_hosts(value: Any) -> Hosts:
    """What a fleet's `hosts` says. Raises WrongValueError."""
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        if wrong := _wrong(value):
            raise WrongValueError(wrong)
        return HostList(tuple(value))
    if not isinstance(value, str):
        raise WrongValueError(f"must be {_WAYS}, not {named(value)}")
    kind, _, rest = value.partition(":")
    if kind == "file" and rest.strip():
        return HostFile(rest)
    if kind == "command":
        return HostCommand(command_words(rest))
    raise WrongValueError(f"must be {_WAYS}")


def _lines(text: str, where: str) -> tuple[str, ...]:
    words = [line.partition("#")[0].strip() for line in text.splitlines()]
    hosts = tuple(word for word in words if word)
    if wrong := _wrong(hosts):
        raise UsageError(f"The hosts of {where!r} cannot be used.", why=f"The list {wrong}.")
    return hosts


def _wrong(hosts: Iterable[str]) -> str:
    """What is wrong with them; empty: nothing."""
    seen: set[str] = set()
    for host in hosts:
        if not _HOST.fullmatch(host):
            return f"has {host!r}, which is not a host: a name or address, or HOST:PORT"
        if host in seen:
            return f"names {host!r} twice"
        seen.add(host)
    return "" if seen else "names no host"
