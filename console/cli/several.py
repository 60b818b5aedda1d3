"""Verbs over several connections at once: `--group`, `--fleet`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import click

from console.cli.context import Call, Rights
from console.cli.streams import error_json
from console.errors import ConnectionFailedError, ConsoleError, UsageError

if TYPE_CHECKING:
    from console.config import CommandLineValues, Profile

AT_ONCE = 64
"""Connections that are asked at the same time. One that is dead costs its own time-out; so many
are needed that no others wait for it."""


def several_options(verb: Callable[..., Any]) -> Callable[..., Any]:
    """`--group` and `--fleet`, for verbs that work on several connections."""
    for option in (
        click.option(
            "--fleet", metavar="F", help="All connections of this fleet of the configuration."
        ),
        click.option(
            "--group", metavar="G", help="All connections of this group of the configuration."
        ),
    ):
        verb = option(verb)
    return verb


def profiles_of(
    call: Call, group: str | None, fleet: str | None, said: CommandLineValues | None = None
) -> list[Profile]:
    """The connections of the group or the fleet, or the one that is named, or all that are
    configured. `said`: in place of what the call says."""
    said, configuration = said or call.said, call.configuration
    if group is not None or fleet is not None:
        option = "--fleet" if group is None else "--group"
        if said.url or said.profile or (group is not None and fleet is not None):
            raise UsageError(f"{option} goes with no other of --url, --profile, --group, --fleet.")
        if fleet is not None:
            return configuration.in_fleet(fleet, said)
        return configuration.in_group(group or "", said)
    named = configuration.chosen(said, url_rights=Rights.ADMIN)
    profiles = configuration.profiles(said) if named is None else [named]
    if not profiles:
        raise configuration.none_named()
    return profiles


def over_connections(
    *alone: str,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Lets a verb that answers once be called with them: it answers for each connection.

    `alone`: its flags that want one connection. Exit: 3 where one could not be asked, else the
    highest of all.
    """

    def decorated(verb: Callable[..., Any]) -> Callable[..., Any]:
        @several_options
        @functools.wraps(verb)
        def with_several(
            call: Call, *arguments: Any, group: str | None, fleet: str | None, **given: Any
        ) -> Any:
            if group is None and fleet is None:
                return verb(call, *arguments, **given)
            for flag in alone:
                if given[flag]:
                    words = flag.replace("_", "-")
                    raise UsageError(f"--{words} does not go with --group or --fleet.")
            return _over(call, group, fleet, lambda one: verb(one, *arguments, **given))

        return with_several

    return decorated


@dataclass(frozen=True)
class _OneOfSeveral(Call):
    """Keeps its answer, instead of putting it out."""

    answered: list[tuple[object, Sequence[str]]] = field(default_factory=list)

    @property
    def connection_words(self) -> tuple[str, ...]:
        """By its profile."""
        return ("--profile", self.said.profile or "")

    def answer(self, value: object, lines: Sequence[str]) -> None:
        """The result."""
        self.answered.append((value, lines))


def _over(call: Call, group: str | None, fleet: str | None, verb: Callable[[Call], object]) -> None:
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415  # 5 ms, for these only

    profiles = profiles_of(call, group, fleet)
    context = click.get_current_context()
    whole = call.configuration

    def asked(label: str, name: str) -> tuple[str, dict[str, Any], Sequence[str], int]:
        one = _OneOfSeveral(replace(call.said, profile=name), call.schema, call.json)
        one.__dict__["configuration"] = whole  # it was read once
        status = 0
        try:
            with click.Context(context.command, context, info_name=context.info_name):
                verb(one)
        except ConsoleError as error:
            return label, {"error": error_json(error)}, str(error).splitlines(), error.exit_status
        except SystemExit as end:
            status = int(end.code or 0)
        (value, lines), *_ = one.answered
        assert isinstance(value, dict)  # noqa: S101  # each verb answers so
        return label, value, lines, status

    with ThreadPoolExecutor(min(AT_ONCE, len(profiles)), "connection") as pool:
        found = list(pool.map(lambda one: asked(one.label, one.name or ""), profiles))
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
    unasked = ConnectionFailedError.exit_status
    statuses = [status for *_, status in found]
    raise SystemExit(unasked if unasked in statuses else max(statuses))
