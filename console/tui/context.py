"""What all screens share: store, connections, feeds, clock, navigator; and how they close."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from textual.await_complete import AwaitComplete
from textual.message import Message
from textual.screen import Screen

from console import formats
from console.clock import elapsed, utc
from console.doctor.watcher import DoctorUpdate, Sampling
from console.filters import Saved, Words
from console.monitor.limits import ThresholdsOf, defaults_of
from console.monitor.sampler import Reading
from console.tui.findings import QueueKey
from console.tui.jobs import ActionRuns
from console.tui.open_connection import OpenConnection
from console.tui.recordings import Recordings, Replay
from console.tui.store import RightsText, Store, Traits
from console.tui.terminal import DEFAULT_APPEARANCE, Appearance
from console.views.view import Display

if TYPE_CHECKING:
    from console.tui.navigation import Navigation


@dataclass(frozen=True)
class Clock:
    """`monotonic` is for ages, `utc` for the time shown on the screen."""

    monotonic: Callable[[], float] = elapsed
    utc: Callable[[], datetime] = utc


class Feed(Sampling, Protocol):
    """One connection's source of readings. None of its methods blocks."""

    @property
    def name(self) -> str:
        """The connection's name on the screen."""

    @property
    def interval_seconds(self) -> float:
        """The pause between two samples."""

    @interval_seconds.setter
    def interval_seconds(self, seconds: float) -> None: ...

    def sample_now(self) -> None:
        """Skip the rest of the pause."""


class NewReading(Message):
    """A feed has sampled. Posted from the feed's thread; immutable."""

    def __init__(self, name: str, reading: Reading, at: float) -> None:
        super().__init__()
        self.name = name
        self.reading = reading
        self.at = at


class NewDiagnoses(Message):
    """The doctor has examined queues. Posted from the doctor's thread; immutable."""

    def __init__(self, name: str, examined: DoctorUpdate, at: float, moment: datetime) -> None:
        super().__init__()
        self.name = name
        self.examined = examined
        self.at = at
        self.moment = moment


@dataclass(frozen=True)
class Setup:
    """What a console is started with, besides its feeds."""

    connections: Sequence[OpenConnection] = ()
    clock: Clock = Clock()
    banner: str = ""
    rights: str | Mapping[str, RightsText] = ""
    """Texts for the connections' lines: one for all, or one per connection name."""
    production: Collection[str] = ()
    """Names of the connections configured as production, whatever their databases say."""
    thresholds: Mapping[str, ThresholdsOf] = field(default_factory=dict)
    zone: tzinfo | None = UTC
    """The display zone; None: the machine's own."""
    config_path: Path | None = None
    recordings: Path | None = None
    """The folder that readings are recorded to; None: they are not."""
    appearance: Appearance = DEFAULT_APPEARANCE
    groups: Mapping[str, str] = field(default_factory=dict)
    """For connections that are not in `connections`, as those of a recording."""
    lacks: Mapping[str, str] = field(default_factory=dict)
    """What the source of the readings cannot do -> why: a tab's name, `verbs`, `runs`, `doctor`."""
    by_group: bool = False
    """Whether it starts with one line per connection, all folded."""

    def traits(self, name: str) -> Traits:
        colors = {
            connection.name: connection.color for connection in self.connections if connection.color
        }
        groups = {
            **self.groups,
            **{connection.name: connection.group for connection in self.connections},
        }
        return Traits(
            self.rights if isinstance(self.rights, str) else self.rights.get(name, ""),
            name in self.production,
            self.thresholds.get(name, defaults_of),
            colors.get(name) or self.appearance.colors.get(name, ""),
            groups.get(name, ""),
        )


FEW_CONNECTIONS = 8
"""With more than these, connections take turns, so that each costs less."""
INTERVALS = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)


@dataclass
class Context:
    """Shared by all screens of a console."""

    store: Store
    clock: Clock
    navigator: Navigation
    feeds: Sequence[Feed] = ()
    connections: Mapping[str, OpenConnection] = field(default_factory=dict)
    zone: tzinfo | None = UTC
    """The current display zone; None: the machine's own."""
    config_path: Path | None = None
    history: list[str] = field(default_factory=list)
    """Commands typed so far, the newest last."""
    action_runs: ActionRuns = field(default_factory=ActionRuns)
    """Actions running in this console, whatever is on the screen."""
    recordings: Recordings | None = None
    """None: nothing is recorded."""
    replay: Replay | None = None
    """Set in a console that plays a recording."""
    lacks: Mapping[str, str] = field(default_factory=dict)
    """As in the setup."""
    saved: Saved = field(default_factory=Saved)
    """The saved filters."""
    _other_zone: tzinfo | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._other_zone = None if self.zone is UTC else UTC

    def toggle_zone(self) -> None:
        """Switch between UTC and the display zone (else the machine's own)."""
        self.zone, self._other_zone = self._other_zone, self.zone

    def conn(self, key: QueueKey) -> OpenConnection | None:
        """The connection of a queue; None in a console that only has readings."""
        return self.connections.get(key[0])

    def filters(self, key: QueueKey) -> Words:
        conn = self.conn(key)
        return {**self.saved.messages, **(conn.filters if conn is not None else {})}

    def moment(self, at: datetime) -> str:
        return formats.moment(at, self.zone)

    @property
    def display(self) -> Display:
        return Display(self.zone, self.clock.utc())

    @property
    def corner_text(self) -> str:
        """The end of the first line: the interval and the time."""
        if self.replay is not None:
            return self.replay.corner_text(self.zone)
        seconds = max((feed.interval_seconds for feed in self.feeds), default=0.0)
        return f"every {seconds:g} s · {formats.clock(self.clock.utc(), self.zone)}"

    def sample_now(self) -> None:
        """Sample all databases now, including those waiting for a retry."""
        for feed in self.feeds:
            feed.sample_now()

    @property
    def recordings_root(self) -> Path | None:
        """The folder that recordings of these connections are read from."""
        if self.replay is not None:
            return self.replay.root
        return None if self.recordings is None else self.recordings.root

    @property
    def why_no_database(self) -> str:
        """Why no action or query is possible for a connection without a database."""
        only_samples = "This console only shows samples: nothing can be done from here."
        return self.lacks.get("verbs", only_samples)

    def change_interval(self, step: int) -> None:
        """Sample less (1) or more (-1) often."""
        for feed in self.feeds:
            longer = [s for s in INTERVALS if s > feed.interval_seconds]
            shorter = [s for s in INTERVALS if s < feed.interval_seconds]
            nearest = longer[:1] if step > 0 else shorter[-1:]
            feed.interval_seconds = nearest[0] if nearest else feed.interval_seconds
            self.store.intervals[feed.name] = feed.interval_seconds
            if step < 0:
                feed.sample_now()


class Closable:
    """A mixin for screens: keys, messages, timers or calls that are pending when the screen is
    closed do nothing."""

    @property
    def in_stack(self) -> bool:
        return self._screen in self._screen.app.screen_stack

    def close(self) -> bool:
        """Close it before something else opens. False if another screen is on top."""
        if self._screen.app.screen is not self._screen:
            return False
        self._screen.app.pop_screen()
        return True

    def dismiss(self, result: Any = None) -> AwaitComplete:
        """As Textual's, but without effect if another screen is on top."""
        if self._screen.app.screen is not self._screen:
            return AwaitComplete()
        return Screen.dismiss(self._screen, result)

    def after_refresh(self, call: Callable[..., Any], *arguments: Any) -> None:
        """Call it after the next refresh, if the screen is still open."""
        self._screen.call_after_refresh(self._if_open(call), *arguments)

    def every(self, seconds: float, call: Callable[[], Any]) -> None:
        self._screen.set_interval(seconds, self._if_open(call))

    def _if_open(self, call: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *arguments: call(*arguments) if self.in_stack else None

    @property
    def _screen(self) -> Screen[Any]:
        return cast("Screen[Any]", self)
