"""Record connections without screens, until Ctrl-C or SIGTERM.

The connection given, those of --group or --fleet, else all configured ones. It samples at the
connection's interval, and waits, findings and actions less often. No payloads. A
connection has one recorder: a console opened meanwhile leaves the recording to it.

With the right operator it also repairs what the policy of the configuration allows without a
person, by default holes that pile up in rings: dbq-console help unattended. It notifies the
configured receivers of new findings and of their end; of several recorders of a database one
does: dbq-console help notifications.

\b
Examples:
  dbq-console record
  dbq-console record --profile orders --keep 14d --most-mib 500
  dbq-console record --group production
"""

import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import click

from console import features
from console.cli.command import FLEET, GROUP
from console.cli.context import Call
from console.cli.services import PRINT_UNIT, run_until, unit
from console.cli.several import profiles_of
from console.cli.streams import narrate, stop_requested
from console.config import Profile
from console.features.history.commands.history import RECORDINGS
from console.features.history.recorder import KEEP_SECONDS, MOST_BYTES, Bounds, Recorder, folder
from console.monitor.sampler import Reading
from console.verbs.command import Command
from console.verbs.parameters import DURATION, Parameter

_LOG = logging.getLogger(__name__)
_STOP_SECONDS = 15.0
_SILENT_SECONDS = 600.0
"""Without any sample; longer than every time-out of one."""
_MIB = 2**20
_KEEP = f"{KEEP_SECONDS / 86_400:.0f}d"


def _run(
    call: Call,
    recordings: Path | None,
    keep: float,
    most_mib: int,
    group: str | None,
    fleet: str | None,
    print_unit: bool,
) -> None:
    if print_unit:
        text = unit(call, "record", "records queues, and repairs what its policy allows")
        call.answer({"unit": text}, text.splitlines())
        return
    profiles = profiles_of(call, group, fleet)
    for mistake in call.configuration.document.unread:
        narrate(str(mistake))
    bounds = Bounds(keep_seconds=keep, most_bytes=most_mib * _MIB)
    with ExitStack() as stack, stop_requested() as stop:
        narrators = [
            stack.enter_context(_recording(call, profile, recordings or folder(), bounds))
            for profile in profiles
        ]
        labels = ", ".join(one.label for one in narrators)
        narrate(f"Recording {labels} to {recordings or folder()}.")
        run_until(stop, lambda: all(one.is_current for one in narrators))
        narrate("Stopping.")


@contextmanager
def _recording(call: Call, profile: Profile, root: Path, bounds: Bounds) -> "Iterator[_Narrator]":
    """Record a connection meanwhile."""
    from console.features.history.recording import Recording  # noqa: PLC0415  # slow to import

    database = profile.open()
    recorder = Recorder(root, database.label, bounds)
    state = _Narrator(recorder)
    companions = [
        module.companion(call.configuration, profile, database, narrate)
        for module in features.modules("recorder")
    ]
    recording = Recording(
        database,
        recorder,
        interval_seconds=profile.interval_seconds,
        stuck_after_seconds=profile.stuck_after_seconds,
        thresholds_of=profile.thresholds,
        masks=profile.masks,
        rights=profile.rights,
        on_reading=state.on_reading,
    )
    recording.companions = companions
    recording.start()
    try:
        yield state
    finally:
        recording.stop(_STOP_SECONDS)
        recorder.close()
        database.close()


class _Narrator:
    """Reports when a connection is lost or back, and when nothing can be written."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._problem = ""
        self._at = time.monotonic()

    @property
    def label(self) -> str:
        return self._recorder.connection

    @property
    def is_current(self) -> bool:
        """Whether its threads live: a sample that fails counts, too."""
        return time.monotonic() - self._at < _SILENT_SECONDS

    def on_reading(self, reading: Reading) -> None:
        self._at = time.monotonic()
        error = reading.error
        problem = self._recorder.problem or ("" if error is None else str(error).replace("\n", " "))
        if problem != self._problem:
            self._problem = problem
            state = "not recorded completely" if problem else "recorded again"
            _LOG.warning("%s: %s", self._recorder.connection, state)
            narrate(f"{self._recorder.connection}: {problem or 'recording again'}")


_PARAMETERS = (
    RECORDINGS,
    Parameter("keep", type=DURATION, default=_KEEP, metavar="T"),
    Parameter(
        "most-mib",
        "Per connection, in MiB; the oldest is deleted first.",
        click.IntRange(min=1),
        default=str(MOST_BYTES // _MIB),
        metavar="N",
    ),
    GROUP,
    FLEET,
    PRINT_UNIT,
)
COMMAND = Command("record", _run, __doc__, _PARAMETERS)
