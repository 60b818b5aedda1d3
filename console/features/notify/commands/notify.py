"""Send each receiver of notifications a test, and show its response.

The receivers of the connection given, else all configured ones. The test is a finding that
begins and ends at once; no database is used. Exit 0: all accepted it; 1: one refused it;
3: one could not be reached.

\b
Examples:
  dbq-console notify test
  dbq-console notify test --profile orders --json
"""

from datetime import UTC, datetime
from threading import Thread

import click

from console.cli.context import Call
from console.config import Profile
from console.errors import UsageError
from console.features.notify.receivers import targets
from console.features.notify.sending import NotSentError
from console.features.notify.targets import Source, Target, example_events
from console.rights import Rights
from console.verbs.command import Command
from console.verbs.parameters import argument


def _run(call: Call, action: str) -> None:
    del action
    profile = call.profile
    receivers = targets(call.configuration, profile)
    if not receivers:
        raise _no_receiver(profile)
    tests = [_Test(target, _test_source(profile)) for target in receivers]
    for one in tests:
        one.start()
    for one in tests:
        one.join()
    note = _missing_right(profile)
    call.answer(
        {"receivers": [test.as_json() for test in tests], "note": note or None},
        [*(test.line for test in tests), *([note] if note else [])],
    )
    if status := max(test.status for test in tests):
        raise click.exceptions.Exit(status)


class _Test(Thread):
    """The test of one receiver; a thread, so that none waits for another."""

    def __init__(self, target: Target, source: Source) -> None:
        super().__init__(name=f"test {target.name}", daemon=True)
        self._target = target
        self._source = source
        self._response = ""
        self._error: NotSentError | None = None

    def run(self) -> None:
        key = (self._source.connection, self._target.name)
        events = example_events(key, datetime.now(UTC))
        try:
            for _, response in self._target.send(self._source, events):
                self._response = self._response or response
        except NotSentError as error:
            self._error = error

    @property
    def status(self) -> int:
        """Its part of the exit status."""
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
            "response": self._response if self._error is None else str(self._error),
        }

    @property
    def line(self) -> str:
        result = f"sent: {self._response}" if self._error is None else f"not sent: {self._error}"
        return f"{self._target.name} ({self._target.receiver.shown}): {result}"


def _test_source(profile: Profile | None) -> Source:
    if profile is None:
        return Source("test")
    return Source(profile.label, profile.group, production=profile.production)


def _missing_right(profile: Profile | None) -> str:
    """Why a recorder of the connection would send nothing, or ""."""
    if profile is None or profile.rights >= Rights.OPERATOR:
        return ""
    return (
        f"{profile.label}: its recorder sends nothing: the connection is read-only, and the lease "
        'requires rights = "operator"'
    )


def _no_receiver(profile: Profile | None) -> UsageError:
    where = "" if profile is None else f" for {profile.label}"
    return UsageError(
        f"No receiver of notifications is configured{where}.",
        next_step="Add a table [notifications.NAME] to the configuration: dbq-console help "
        "notifications",
    )


_ACTION = argument("action", type=click.Choice(["test"]))
COMMAND = Command("notify", _run, __doc__, (_ACTION,))
