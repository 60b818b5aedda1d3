"""Say why a queue is not as usual: what changed, and what may have caused it.

It compares the last two hours with what is usual: the forecast's band, else the same hours of the
last days, else the hour before, else the minutes before. Each figure that left its band is named
with the minute; beside it stands what happened then. At most five causes follow, the likeliest
first, each with its evidence and with what would disprove it. It proves nothing: it says where to
look first. It reads recordings, and of the database only its audit and its decisions.

\b
Examples:
  dbq-console why orders
  dbq-console why orders --at 03:10
  dbq-console why orders --at 2026-03-29T03:10+02:00 --json
"""

from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path

from console.cli.command import NAME
from console.cli.context import Call
from console.errors import UsageError
from console.features.history.commands.history import RECORDINGS
from console.features.why.commands.timeline import where
from console.features.why.views.why import VIEW
from console.formats import parse_moment
from console.verbs.command import Command
from console.verbs.parameters import Parameter
from console.views.view import Display, Source, no_database


def moment_of(text: str, now: datetime, zone: tzinfo | None) -> datetime:
    """The last time of day like this, or an ISO time. UsageError."""
    try:
        at = datetime.strptime(text, "%H:%M")  # noqa: DTZ007  # a time of day, without a zone
    except ValueError:
        at = parse_moment(text)
    else:
        local = now.astimezone(zone)
        at = local.replace(hour=at.hour, minute=at.minute, second=0, microsecond=0)
        at -= timedelta(days=at > local)
    if at > now:
        raise UsageError(f"{text!r} is in the future.")
    return at.astimezone(UTC)


def _run(call: Call, name: str, at: str | None, recordings: Path | None) -> None:
    now = datetime.now(UTC)
    moment = now if at is None else moment_of(at, now, call.zone)
    of = {"where": where(call, name, recordings), "at": moment, "now": now}
    result = VIEW.read(Source(no_database, values=of))
    call.answer(result.as_json(call.zone), [*VIEW.lines(result, Display(call.zone, now))])


_AT = Parameter("at", "At that time: 03:10, or an ISO time. Default: now.", metavar="T")
COMMAND = Command("why", _run, __doc__, (NAME, _AT, RECORDINGS))
