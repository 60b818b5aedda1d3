"""Verbs over several connections at once: `--group`, `--fleet`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import click

from console.cli.context import Call
from console.cli.streams import error_json
from console.command_line import CommandLineValues
from console.errors import ConnectionFailedError, ConsoleError, UsageError
from console.rights import Rights

if TYPE_CHECKING:
    from console.config import Profile

AT_ONCE = 64
"""Connections queried at the same time: enough that none waits for the time-out of another."""


def profiles_of(
    call: Call, group: str | None, fleet: str | None, command_line: CommandLineValues | None = None
) -> list[Profile]:
    """The connections of the group or fleet, else the one given, else all configured ones.
    `command_line` replaces the call's own command line."""
    command_line, configuration = command_line or call.command_line, call.configuration
    if group is not None or fleet is not None:
        option = "--fleet" if group is None else "--group"
        if command_line.url or command_line.profile or (group is not None and fleet is not None):
            raise UsageError(f"{option} excludes --url, --profile, --group and --fleet.")
        if fleet is not None:
            return configuration.in_fleet(fleet, command_line)
        return configuration.in_group(group or "", command_line)
    named = configuration.selected_profile(command_line, url_rights=Rights.ADMIN)
    profiles = configuration.profiles(command_line) if named is None else [named]
    if not profiles:
        raise configuration.no_database_error()
    return profiles


def over_connections(run: Callable[..., None], alone: Sequence[str]) -> Callable[..., None]:
    """With `--group` and `--fleet` a verb with a single result has one result per connection.

    `alone`: its flags that require a single connection. Exit: 3 if a connection failed, else the
    highest of all.
    """

    def run_on_each(call: Call, /, *, group: str | None, fleet: str | None, **given: Any) -> None:
        if group is None and fleet is None:
            run(call, **given)
            return
        for flag in alone:
            if given[flag]:
                words = flag.replace("_", "-")
                raise UsageError(f"--{words} does not go with --group or --fleet.")
        _over(call, group, fleet, lambda one: run(one, **given))

    return run_on_each


@dataclass(frozen=True)
class _OneOfSeveral(Call):
    """Keeps its result instead of printing it."""

    answered: list[tuple[object, Sequence[str]]] = field(default_factory=list)

    @property
    def connection_words(self) -> tuple[str, ...]:
        return ("--profile", self.command_line.profile or "")

    def answer(self, value: object, lines: Sequence[str], *, says_standby: bool = True) -> None:
        self.answered.append(self._as_of_standby(value, lines, in_words=says_standby))


def _over(call: Call, group: str | None, fleet: str | None, verb: Callable[[Call], object]) -> None:
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415  # takes 5 ms

    profiles = profiles_of(call, group, fleet)
    context = click.get_current_context()
    configuration = call.configuration

    def run(label: str, name: str) -> tuple[str, dict[str, Any], Sequence[str], int]:
        command_line = replace(call.command_line, profile=name)
        several = _OneOfSeveral(command_line, call.schema, call.json, call.verb, call.needs)
        several.__dict__["configuration"] = configuration  # read only once
        status = 0
        try:
            with click.Context(context.command, context, info_name=context.info_name):
                verb(several)
        except ConsoleError as error:
            return label, {"error": error_json(error)}, str(error).splitlines(), error.exit_status
        except SystemExit as end:
            status = int(end.code or 0)
        (value, lines), *_ = several.answered
        assert isinstance(value, dict)  # noqa: S101  # in each of these verbs
        return label, value, lines, status

    with ThreadPoolExecutor(min(AT_ONCE, len(profiles)), "connection") as pool:
        found = list(pool.map(lambda one: run(one.label, one.name or ""), profiles))
    call.answer(
        {
            "connections": [
                {"profile": label, "exit": status, **value} for label, value, _, status in found
            ]
        },
        [
            line
            for label, _, lines, _ in found
            for line in (f"{label}:", *(f"  {line}" for line in lines))
        ],
    )
    raise SystemExit(exit_status_of([status for *_, status in found]))


def exit_status_of(statuses: Sequence[int]) -> int:
    """That of a failed connection if there is one, else the highest."""
    failed = ConnectionFailedError.exit_status
    return failed if failed in statuses else max(statuses)
