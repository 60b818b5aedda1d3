"""Print a queue as Markdown, for a ticket; with --since all queues of a shift, for a handover.

Of a queue: its figures, findings, notes and last actions, examined now. With --since: what
happened in that time, what was repaired unattended, what operators did, what is in force and until
when, what the forecast says of the next hours; from recordings, the audit and the decisions. A
database that cannot be reached is named; then only its recordings are read. No payloads.

\b
Examples:
  dbq-console report orders > ticket.md
  dbq-console report --since 8h
  dbq-console report --since 8h --group production --json
"""

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from console.cli.command import FLEET, GROUP, OPTIONAL_NAME
from console.cli.commands import report
from console.cli.context import Call
from console.cli.several import profiles_of
from console.config import Profile
from console.errors import UsageError
from console.features.history.commands.history import RECORDINGS
from console.features.history.recorder import folder
from console.features.why.handover import Handover, handover, markdown, together
from console.verbs.command import Command
from console.verbs.parameters import DURATION, Parameter

_OF_A_QUEUE: Callable[..., None] | None = report.COMMAND.run


def _run(
    call: Call,
    name: str | None,
    seconds: float | None,
    group: str | None,
    fleet: str | None,
    recordings: Path | None,
    **of_a_queue: Any,
) -> None:
    if seconds is not None:
        _of_all(call, name, seconds, profiles_of(call, group, fleet), recordings or folder())
        return
    if name is None or group is not None or fleet is not None:
        raise UsageError(
            "Which queue?", next_step="Name it; or say --since 8h, for all queues of that time."
        )
    assert _OF_A_QUEUE is not None  # noqa: S101  # it is what `report` runs without this feature
    _OF_A_QUEUE(call, name, **of_a_queue)


def _of_all(
    call: Call, name: str | None, seconds: float, profiles: list[Profile], root: Path
) -> None:
    now = datetime.now(UTC)

    def of(profile: Profile) -> Handover:
        opened = profile.open()
        try:
            return handover(root, opened.label, lambda: opened, seconds, now, name)
        finally:
            opened.close()

    found = together([partial(of, profile) for profile in profiles])
    text = markdown(found, call.zone)
    call.answer(
        {"connections": [one.as_json() for one in found], "markdown": text},
        text.rstrip("\n").split("\n"),
        says_standby=False,
    )


_SINCE = Parameter(
    "since", "All queues, over that time: a handover.", DURATION, metavar="T", dest="seconds"
)
COMMAND = Command(
    "report",
    _run,
    __doc__,
    (OPTIONAL_NAME, _SINCE, GROUP, FLEET, RECORDINGS, *report.COMMAND.parameters[1:]),
)
"""It replaces the core's, which it runs for a queue."""
