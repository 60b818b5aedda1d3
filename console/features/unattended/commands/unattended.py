"""List what may be repaired without a person: which findings, by which policy, and why it is safe.

`record` makes these repairs, and doctor --unattended (for cron), each proven twice, 10 seconds
apart. The policy is in the configuration: [profiles.NAME.unattended]. With --since and --dry-run:
what it would have done, by the recordings; no database is used.

\b
Examples:
  dbq-console unattended --profile shop
  dbq-console unattended orders --json
  dbq-console unattended --since 30d --dry-run
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from console.cli.command import OPTIONAL_NAME
from console.cli.context import Call
from console.cli.lists import answer
from console.cli.streams import narrate
from console.errors import UsageError
from console.features.history.commands.history import RECORDINGS, recorded_connection
from console.features.history.points import since
from console.features.history.reader import RecordReader
from console.features.history.recorder import folder
from console.features.unattended.past import DryRun, dry_run
from console.features.unattended.policy import Policy
from console.features.unattended.views.unattended import VIEW
from console.formats import duration, moment, numbered, plain
from console.verbs.command import Command
from console.verbs.parameters import DURATION, Parameter
from console.views.view import Source


def _run(
    call: Call, name: str | None, seconds: float | None, dry_run: bool, recordings: Path | None
) -> None:
    if dry_run is not (seconds is not None) or (recordings and not dry_run):
        raise UsageError(
            "--since and --dry-run go together: what the policy would have done in that time."
        )
    if seconds is None:
        answer(call, VIEW, VIEW.read(_source(call, name)))
        return
    found = _dry_run(call, name, seconds, recordings or folder())
    if found.skipped:
        narrate(found.skipped)
    call.answer(_json(found), [*_lines(call, found)])


def _source(call: Call, name: str | None) -> Source:
    return Source(call.database, call.schema, name, settings_of=call.settings_of)


def _dry_run(call: Call, name: str | None, seconds: float, root: Path) -> DryRun:
    connection = recorded_connection(call, root, None)
    known = connection in call.configuration.names
    profile = call.configuration.profile(connection) if known else call.profile

    def policy_of(queue: str) -> Policy:
        settings = call.settings_of(queue) if profile is None else profile.settings_of(queue)
        return Policy.of_settings(settings)

    span = since(datetime.now(UTC), seconds)
    return dry_run(RecordReader(root, connection), span, policy_of, name)


def _json(found: DryRun) -> dict[str, object]:
    return {
        "connection": found.connection,
        "since": found.span.begin.isoformat(),
        "until": found.span.end.isoformat(),
        "findings": [one.as_json() for one in found.findings],
        "repaired": len(found.repaired),
        "not_woken": found.not_woken,
        "skipped": found.skipped,
    }


def _lines(call: Call, found: DryRun) -> Iterator[str]:
    if not found.findings:
        yield "Nothing was recorded in that time that the policy would repair."
        return
    for one in found.findings:
        done = f"left to a person: {one.left}" if one.left else "repaired after 10 s"
        until = one.until and moment(one.until, call.zone)
        ended = f"ended {until}" if until else "has not ended yet"
        by = f", after an action of {one.operator}" if one.operator else ""
        sooner = f"; {duration(one.sooner_seconds)} sooner" if not one.left else ""
        yield plain(
            f"{moment(one.at, call.zone)}  {one.queue}  {one.code}: {done}{sooner}; it {ended}{by}"
        )
    yield (
        f"{numbered(len(found.findings), 'finding')}: {len(found.repaired):,} would have been "
        f"repaired automatically, and a person not woken for {found.not_woken:,} of them."
    )


_PARAMETERS = (
    OPTIONAL_NAME,
    Parameter(
        "since",
        "What it would have done within this time, with --dry-run.",
        DURATION,
        dest="seconds",
        metavar="T",
    ),
    Parameter("dry-run", "Tell it by the recordings; nothing is changed.", is_flag=True),
    RECORDINGS,
)
COMMAND = Command("unattended", _run, __doc__, _PARAMETERS)
