"""What every screen works with: the board, the connections, the clock, and the ways to others."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Protocol

from console import formats
from console.monitor.saved import Saved, Words
from console.tui.board import Board, Key
from console.tui.feed import Clock, Feed
from console.tui.findings import FindingView
from console.tui.opening import Opening
from console.tui.places import Place
from console.tui.recordings import Recordings
from console.tui.replay import Replay
from console.tui.running import Runs

INTERVALS = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)


class Ways(Protocol):
    """Where one can go from anywhere. Screens know these, and not each other."""

    def open_queue(self, key: Key, tab: str = "") -> None:
        """A queue's screen, on one of its tabs."""

    def open_finding(self, finding: FindingView) -> None:
        """A finding as it was shown: its evidence, and what mends it."""

    def open_message(self, key: Key, message: str) -> None:
        """One message, by the key that a page of messages gave."""

    def open_waits(self, connection: str) -> None:
        """What a server's sessions wait for."""

    def open_actions(self, key: Key, words: Sequence[str] = (), state: str = "") -> None:
        """The verbs that a queue has. `words`: filters that stand in the form.

        `state`: the one that all messages are in which they are for, if it is known.
        """

    def open_action(self, key: Key, verb: str, words: Sequence[str] = (), **options: str) -> None:
        """One verb's form. `options` are its other fields, by the command line's names."""

    def open_running(self, number: int = 0) -> None:
        """An action that runs here; 0: the one that there is, or which of several."""

    def open_audit(self, connection: str = "", key: Key | None = None) -> None:
        """Who did what: everywhere, on a connection, to a queue."""

    def open_install(self, connection: str) -> None:
        """A new queue."""

    def open_adopt(self, connection: str) -> None:
        """A table that is a queue already."""

    def open_smoke(self, key: Key) -> None:
        """A trial of the queue's design."""

    def open_runs(self, id_: str = "") -> None:
        """The runs of the pipeline on this machine; `id_`: the one to begin at."""

    def open_pipeline(self, verb: str, key: Key | None = None, **options: str) -> None:
        """The form of a job of the pipeline. `options` are its fields."""

    def open_bench(self, connection: str, **options: str) -> None:
        """How fast the designs are on a connection. `options` are the form's fields."""

    def open_connections(self) -> None:
        """The connections, and what is configured."""

    def add_connection(self, opening: Opening) -> None:
        """One more connection, looked at from now on."""

    def log_in(self, name: str = "") -> None:
        """Take the passwords that a person must type."""

    def examine(self, key: Key | None = None) -> None:
        """Let the doctor look now: at one queue, or at all."""


@dataclass
class Desk:
    """One for all screens of a console."""

    board: Board
    clock: Clock
    ways: Ways
    feeds: Sequence[Feed] = ()
    places: Mapping[str, Place] = field(default_factory=dict)
    zone: tzinfo | None = UTC
    """In which times of day are shown now (None: the machine's own)."""
    config_path: Path | None = None
    history: list[str] = field(default_factory=list)
    """The commands that were typed, the newest last."""
    running: Runs = field(default_factory=Runs)
    """The actions that run here, whatever is on the screen."""
    recordings: Recordings | None = None
    """What is kept of all this; None: nothing is."""
    replay: Replay | None = None
    """What is played, in a console that shows a recording."""
    saved: Saved = field(default_factory=Saved)
    """The filters that have names."""
    _other_zone: tzinfo | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        """Where times are shown in UTC anyway, the other zone is the machine's own."""
        self._other_zone = None if self.zone is UTC else UTC

    def turn_zone(self) -> None:
        """Times in UTC, or in the display zone (else the machine's own)."""
        self.zone, self._other_zone = self._other_zone, self.zone

    def place(self, key: Key) -> Place | None:
        """The connection of a queue; None in a console that has nothing but readings."""
        return self.places.get(key[0])

    def filters(self, key: Key) -> Words:
        """The saved filters of the messages of a queue."""
        place = self.place(key)
        return {**self.saved.messages, **(place.filters if place is not None else {})}

    def moment(self, at: datetime) -> str:
        """A time as this console shows times now."""
        return formats.moment(at, self.zone)

    @property
    def corner(self) -> str:
        """What stands at the end of the first line: the interval and the time."""
        if self.replay is not None:
            return self.replay.corner(self.zone)
        seconds = max((feed.interval_seconds for feed in self.feeds), default=0.0)
        return f"every {seconds:g} s · {formats.clock(self.clock.utc(), self.zone)}"

    def look_now(self) -> None:
        """Look at all databases now, those too that are waiting to be tried again."""
        for feed in self.feeds:
            feed.look_now()

    @property
    def recordings_root(self) -> Path | None:
        """Where what was recorded of these connections is read."""
        if self.replay is not None:
            return self.replay.root
        return None if self.recordings is None else self.recordings.root

    @property
    def nothing_behind(self) -> str:
        """Why nothing can be done or asked where a connection has no place, in words."""
        what = "This console has readings only" if self.replay is None else "This is a recording"
        return f"{what}: nothing can be done from here."

    def change_interval(self, step: int) -> None:
        """Look less (1) or more (-1) often."""
        for feed in self.feeds:
            longer = [s for s in INTERVALS if s > feed.interval_seconds]
            shorter = [s for s in INTERVALS if s < feed.interval_seconds]
            found = longer[:1] if step > 0 else shorter[-1:]
            feed.interval_seconds = found[0] if found else feed.interval_seconds
            self.board.intervals[feed.name] = feed.interval_seconds
            if step < 0:
                feed.look_now()
