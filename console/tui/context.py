"""What every screen works with: store, connections, feeds, clock, and the ways to other screens."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from textual.message import Message

from console import formats
from console.clock import elapsed
from console.doctor.watcher import DoctorUpdate, Sampling
from console.monitor.filters import Saved, Words
from console.monitor.limits import ThresholdsOf, defaults_of
from console.monitor.sampler import Reading
from console.tui.findings import QueueKey
from console.tui.jobs import ActionRuns
from console.tui.open_connection import OpenConnection, Recordings
from console.tui.store import RightsText, Store, Traits
from console.tui.terminal import DEFAULT_APPEARANCE, Appearance

if TYPE_CHECKING:
    from console.tui.app import ConsoleApp
    from console.tui.replay import Replay


def _utc() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True)
class Clock:
    """`monotonic` is for ages, `utc` is what the corner of the screen shows."""

    monotonic: Callable[[], float] = elapsed
    utc: Callable[[], datetime] = _utc


class Feed(Sampling, Protocol):
    """One connection's source of readings. No method of it waits."""

    @property
    def name(self) -> str:
        """The connection's name on the screen."""

    @property
    def interval_seconds(self) -> float:
        """The pause between two samples."""

    @interval_seconds.setter
    def interval_seconds(self, seconds: float) -> None: ...

    def sample_now(self) -> None:
        """Do not wait for the rest of the pause."""


class NewReading(Message):
    """A feed has looked. Posted from the feed's thread; nothing in it can change any more."""

    def __init__(self, name: str, reading: Reading, at: float) -> None:
        super().__init__()
        self.name = name
        self.reading = reading
        self.at = at


class NewDiagnoses(Message):
    """Queues were examined. Posted from the doctor's thread; nothing in it can change any more."""

    def __init__(self, name: str, examined: DoctorUpdate, at: float, moment: datetime) -> None:
        super().__init__()
        self.name = name
        self.examined = examined
        self.at = at
        self.moment = moment


@dataclass(frozen=True)
class Setup:
    """What a console begins with, beside its feeds."""

    connections: Sequence[OpenConnection] = ()
    clock: Clock = Clock()
    banner: str = ""
    rights: str | Mapping[str, RightsText] = ""
    """Words for the connections' lines, one for all or each by its name."""
    production: Collection[str] = ()
    """The names of those that are marked so, whatever their databases say."""
    thresholds: Mapping[str, ThresholdsOf] = field(default_factory=dict)
    zone: tzinfo | None = UTC
    """In which times of day are shown; None: the machine's own."""
    config_path: Path | None = None
    recordings: Path | None = None
    """The folder to which what is seen is recorded; None: nothing is."""
    appearance: Appearance = DEFAULT_APPEARANCE
    groups: Mapping[str, str] = field(default_factory=dict)
    """Of those that are none of `connections`, as a recording's are."""
    by_group: bool = False
    """Whether it begins with a line for each connection, and no queue in sight."""

    def traits(self, name: str) -> Traits:
        colors = {one.name: one.color for one in self.connections if one.color}
        groups = {**self.groups, **{one.name: one.group for one in self.connections}}
        return Traits(
            self.rights if isinstance(self.rights, str) else self.rights.get(name, ""),
            name in self.production,
            self.thresholds.get(name, defaults_of),
            colors.get(name) or self.appearance.colors.get(name, ""),
            groups.get(name, ""),
        )


FEW_CONNECTIONS = 8
"""Of more than so many each costs less: what one may do at any time they do in turns."""
INTERVALS = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)


@dataclass
class Context:
    """One for all screens of a console."""

    store: Store
    clock: Clock
    navigator: ConsoleApp
    feeds: Sequence[Feed] = ()
    connections: Mapping[str, OpenConnection] = field(default_factory=dict)
    zone: tzinfo | None = UTC
    """In which times of day are shown now (None: the machine's own)."""
    config_path: Path | None = None
    history: list[str] = field(default_factory=list)
    """The commands that were typed, the newest last."""
    action_runs: ActionRuns = field(default_factory=ActionRuns)
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

    def toggle_zone(self) -> None:
        """Times in UTC, or in the display zone (else the machine's own)."""
        self.zone, self._other_zone = self._other_zone, self.zone

    def conn(self, key: QueueKey) -> OpenConnection | None:
        """The connection of a queue; None in a console that has nothing but readings."""
        return self.connections.get(key[0])

    def filters(self, key: QueueKey) -> Words:
        conn = self.conn(key)
        return {**self.saved.messages, **(conn.filters if conn is not None else {})}

    def moment(self, at: datetime) -> str:
        return formats.moment(at, self.zone)

    @property
    def corner_text(self) -> str:
        """What stands at the end of the first line: the interval and the time."""
        if self.replay is not None:
            return self.replay.corner_text(self.zone)
        seconds = max((feed.interval_seconds for feed in self.feeds), default=0.0)
        return f"every {seconds:g} s · {formats.clock(self.clock.utc(), self.zone)}"

    def sample_now(self) -> None:
        """Sample all databases now, those too that are waiting to be tried again."""
        for feed in self.feeds:
            feed.sample_now()

    @property
    def recordings_root(self) -> Path | None:
        """Where what was recorded of these connections is read."""
        if self.replay is not None:
            return self.replay.root
        return None if self.recordings is None else self.recordings.root

    @property
    def why_no_database(self) -> str:
        """Why nothing can be done or asked where a connection has no place, in words."""
        what = "This console only shows readings" if self.replay is None else "This is a recording"
        return f"{what}: nothing can be done from here."

    def change_interval(self, step: int) -> None:
        """Look less (1) or more (-1) often."""
        for feed in self.feeds:
            longer = [s for s in INTERVALS if s > feed.interval_seconds]
            shorter = [s for s in INTERVALS if s < feed.interval_seconds]
            found = longer[:1] if step > 0 else shorter[-1:]
            feed.interval_seconds = found[0] if found else feed.interval_seconds
            self.store.intervals[feed.name] = feed.interval_seconds
            if step < 0:
                feed.sample_now()
