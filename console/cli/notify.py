"""The verb `notify`: whether those who are to be told of findings can be."""

from datetime import UTC, datetime
from threading import Thread

import click

from console.cli.context import Call, verb_options
from console.config import Profile
from console.config.notifications import targets
from console.errors import UsageError
from console.notify.events import NotSentError, Source, example_events
from console.notify.targets import Target
from console.rights import Rights


@click.command()
@click.argument("action", type=click.Choice(["test"]))
@verb_options
def notify(call: Call, action: str) -> None:
    """Send each receiver of notifications a test, and say what it answered.

    Those of the connection that is named, else all that are configured. A test is a finding that
    begins and at once ends; no database is asked. Exit 0: all have taken it; 1: one has refused it;
    3: one could not be reached.

    \b
    Examples:
      dbq-console notify test
      dbq-console notify test --profile orders --json
    """
    del action
    profile = call.profile
    told = targets(call.configuration, profile)
    if not told:
        raise _nobody(profile)
    tests = [_Test(one, _source(profile)) for one in told]
    for one in tests:
        one.start()
    for one in tests:
        one.join()
    note = _right(profile)
    call.answer(
        {"receivers": [one.as_json() for one in tests], "note": note or None},
        [*(one.line for one in tests), *([note] if note else [])],
    )
    if status := max(one.status for one in tests):
        raise click.exceptions.Exit(status)


class _Test(Thread):
    """Of one receiver: one that does not answer keeps no other waiting."""

    def __init__(self, target: Target, source: Source) -> None:
        super().__init__(name=f"test {target.name}", daemon=True)
        self._target = target
        self._source = source
        self._told = ""
        self._error: NotSentError | None = None

    def run(self) -> None:
        place = (self._source.connection, self._target.name)
        events = example_events(place, datetime.now(UTC))
        try:
            for _, told in self._target.send(self._source, events):
                self._told = self._told or told
        except NotSentError as error:
            self._error = error

    @property
    def status(self) -> int:
        """What it makes of the exit status."""
        if self._error is None:
            return 0
        return 1 if self._error.reached else 3

    def as_json(self) -> dict[str, object]:
        """The stable object of `notify test --json`."""
        return {
            "name": self._target.name,
            "to": self._target.receiver.shown,
            "template": self._target.template,
            "sent": self._error is None,
            "answer": self._told if self._error is None else str(self._error),
        }

    @property
    def line(self) -> str:
        """The same for a terminal."""
        answer = f"sent: {self._told}" if self._error is None else f"not sent: {self._error}"
        return f"{self._target.name} ({self._target.receiver.shown}): {answer}"


def _source(profile: Profile | None) -> Source:
    if profile is None:
        return Source("test")
    return Source(profile.label, profile.group, production=profile.production)


def _right(profile: Profile | None) -> str:
    """What keeps a recorder of the connection from sending."""
    if profile is None or profile.rights >= Rights.OPERATOR:
        return ""
    return (
        f"{profile.label}: its recorder sends nothing: the connection is read-only, and the lease "
        'wants rights = "operator"'
    )


def _nobody(profile: Profile | None) -> UsageError:
    where = "" if profile is None else f" for {profile.label}"
    return UsageError(
        f"No receiver of notifications is configured{where}.",
        next_step="Add a table [notifications.NAME] to the configuration: dbq-console help "
        "notifications",
    )


COMMANDS = (notify,)
