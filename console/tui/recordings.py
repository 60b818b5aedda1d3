"""What the console sees is kept while it runs: a recorder a connection, fed by the feeds' threads.

Nothing here is called in the event loop but what only reads words, or says that it is over.
"""

import threading
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from console.doctor.finding import Diagnosis
from console.errors import ConsoleError, RefusedError
from console.monitor import Reading
from console.monitor.recording import Recorder
from console.monitor.recording.records import FINDINGS
from console.tui.places import Place
from console.tui.text import first_line

if TYPE_CHECKING:
    from console.doctor.recording import Rounds

RETRY_SECONDS = 30.0
"""A connection that another console records may be left by it; a full disk may be cleared."""
_SECONDS_AT_THE_END = 0.5


class PlaceRecording:
    """The recording of one connection, begun with its first reading."""

    def __init__(
        self, root: Path, place: Place, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._root = root
        self._place = place
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._ended = False
        self._recorder: Recorder | None = None
        self._rounds: Rounds | None = None
        self._why_not = ""
        self._elsewhere = False
        self._retry_at = 0.0

    # In the threads of the feed and the doctor.

    def saw(self, reading: Reading) -> None:
        """Keep a look."""
        with self._lock:
            if not self._ended and self._recorder is None and self._monotonic() >= self._retry_at:
                self._open()
            rounds = self._rounds
        if rounds is not None:
            rounds.sampled(reading)

    def told(self, diagnoses: Iterable[Diagnosis]) -> None:
        """Keep what the doctor said."""
        from console.doctor.recording import findings  # noqa: PLC0415  # as below

        recorder = self._recorder
        if recorder is not None:
            recorder.add(FINDINGS, findings(diagnoses, datetime.now(UTC)))

    def _open(self) -> None:
        # Loaded in the feed's thread: the console shall start at once.
        from console.doctor.recording import Rounds  # noqa: PLC0415

        self._retry_at = self._monotonic() + RETRY_SECONDS
        place = self._place
        try:
            recorder = Recorder(self._root, place.name, apart=True)
        except RefusedError:
            self._elsewhere, self._why_not = True, ""
            return
        except ConsoleError as error:
            # The cause first: of a long path the end is cut off.
            where, _, why = (error.why or error.what).rpartition(": ")
            self._elsewhere, self._why_not = False, f"not recorded: {why}: {where}"
            return
        self._elsewhere, self._why_not = False, ""
        # The doctor of the console hands on what he finds.
        rounds = Rounds(place.database, recorder, thresholds_of=place.thresholds_of, findings=False)
        rounds.start()
        self._recorder, self._rounds = recorder, rounds
        if self._ended:
            self.end()

    # Anywhere.

    @property
    def problem(self) -> str:
        """Why nothing is recorded, though it should be: one safe line; empty: nothing is wrong."""
        recorder = self._recorder
        return first_line(recorder.problem if recorder is not None else self._why_not)

    @property
    def words(self) -> str:
        """How it stands, for a person; safe to show."""
        if self._elsewhere:
            return "recorded by another console"
        if self.problem:
            return self.problem
        return "not recorded yet" if self._recorder is None else f"recorded to {self._root}"

    def end(self) -> None:
        """Keep nothing more; waits for nobody."""
        # Not for the lock either: whoever has it may be waiting for a disk.
        self._ended = True
        rounds, recorder = self._rounds, self._recorder
        if rounds is not None:
            rounds.stop()
        if recorder is not None:
            recorder.end()

    def wait(self, until: float) -> None:
        """Until its segment is closed, or that moment; who starts next closes what is left."""
        recorder = self._recorder
        if recorder is not None:
            recorder.close(max(0.0, until - time.monotonic()))


class Recordings:
    """All that a console keeps, under one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._of: dict[str, PlaceRecording] = {}

    def add(self, place: Place) -> PlaceRecording | None:
        """One more connection; None: it is configured not to be recorded."""
        if not place.record:
            return None
        self._of[place.name] = PlaceRecording(self.root, place)
        return self._of[place.name]

    def of(self, name: str) -> PlaceRecording | None:
        """The recording of a connection; None: there is none."""
        return self._of.get(name)

    def words(self, name: str) -> str:
        """How the recording of a connection stands."""
        found = self.of(name)
        return "not recorded: record = false" if found is None else found.words

    @property
    def problem(self) -> str:
        """The first connection that is not recorded though it should be, and why."""
        for name, one in self._of.items():
            if one.problem:
                return f"{first_line(name)}: {one.problem}"
        return ""

    def end(self) -> None:
        """Keep nothing more; waits for nobody."""
        for one in self._of.values():
            one.end()

    def wait(self, seconds: float = _SECONDS_AT_THE_END) -> None:
        """Give the segments a moment to be closed, all of them together."""
        until = time.monotonic() + seconds
        for one in self._of.values():
            one.wait(until)
