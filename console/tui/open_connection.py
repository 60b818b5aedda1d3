"""A connection as screens work with it: what may be done there, is hidden, is recorded."""

import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING

from console import catalog
from console.catalog import Queue
from console.config import Profile
from console.config.passwords import Credentials
from console.config.profile import URL as URL_KEY
from console.doctor.finding import Diagnosis
from console.engines import Capabilities, Database
from console.errors import ConsoleError, RefusedError
from console.monitor.filters import Words
from console.monitor.limits import ThresholdsOf, defaults_of
from console.monitor.message import Masks
from console.monitor.recording.recorder import SEGMENT_SECONDS, Bounds, Recorder
from console.monitor.recording.segments import CONSUMERS, FINDINGS
from console.monitor.sampler import Reading, Sampler, WorkLimiter, probe
from console.rights import ConnectionRights, Login, Rights
from console.tui.store import RightsText
from console.tui.text import first_line

if TYPE_CHECKING:
    from console.doctor.recording import WaitsAndActions


@dataclass(frozen=True)
class ConnectionTest:
    """What a test of a connection found."""

    capabilities: Capabilities
    login: Login | None
    seconds: float
    """To connect and ask."""


@dataclass(frozen=True)
class OpenConnection:
    """One connection. Whatever asks its database waits: only jobs do that."""

    name: str
    """As the screen and the store call it."""
    database: Database
    rights: Rights = Rights.READ_ONLY
    thresholds_of: ThresholdsOf = defaults_of
    masks: Masks = ()
    zone: tzinfo | None = UTC
    production: bool = False
    """Marked so where it is configured; its catalog may do so too."""
    cli_options: tuple[str, ...] = ()
    """How the command line names it: `--profile NAME` or `--url URL`, never with a password."""
    credentials: Credentials | None = None
    """What completes its URL, where that is configured; it may want a password typed."""
    url: str = ""
    """For people: without secrets."""
    origin: str = ""
    """Where that comes from: a file and its line, a variable, the command line."""
    record: bool = True
    """Whether what is seen of it is kept, in a console that keeps anything."""
    color: str = ""
    """The mark beside its name; empty: none."""
    filters: Words = field(default_factory=dict)
    """What the saved filters of its messages stand for."""
    bell: bool = False
    """Whether the terminal's bell rings at a new critical finding."""
    group: str = ""
    """Which connections it stands with."""

    def find(self, schema: str, name: str) -> Queue:
        """The queue of that name, as the catalog has it now. Waits; ConsoleError."""
        return catalog.look_up(self.database, name, schema)

    def test(self) -> ConnectionTest:
        """Connect, and ask what the login can do. Waits; ConsoleError."""
        self.database.forget_capabilities()
        began = time.monotonic()
        capabilities = self.database.capabilities
        return ConnectionTest(capabilities, probe(self.database, []), time.monotonic() - began)


def missing_right(has: Rights, wanted: Rights) -> str:
    """Why what wants a right cannot be done with another; empty: it can."""
    if has >= wanted:
        return ""
    return f"it needs the right {wanted.word}; this connection has {has.word}"


def why_not_allowed(conn: OpenConnection | None, wanted: Rights) -> str:
    """The same of a connection, which may not be there."""
    return (
        "there is no such connection here" if conn is None else missing_right(conn.rights, wanted)
    )


def open_connection(
    profile: Profile, database: Database, name: str, credentials: Credentials | None = None
) -> OpenConnection:
    return OpenConnection(
        name,
        database,
        profile.rights,
        profile.thresholds,
        profile.masks,
        profile.display_zone,
        profile.production,
        ("--profile", profile.name) if profile.name else url_options(database),
        credentials,
        profile.shown_url,
        str(profile.settings.value(URL_KEY).origin),
        profile.record,
        profile.color or "",
        profile.saved_words,
        profile.bell,
        profile.group or "",
    )


def url_options(database: Database) -> tuple[str, ...]:
    """A database named by its URL, without its password."""
    url = database.url
    bare = type(url).create(url.drivername, url.username, None, url.host, url.port, url.database)
    return ("--url", bare.update_query_dict(url.query).render_as_string())


@dataclass(frozen=True)
class PendingConnection:
    """A connection that is about to be sampled."""

    conn: OpenConnection
    feed: Sampler
    rights: RightsText


def open_profile(
    profile: Profile, taken: Collection[str] = (), turns: WorkLimiter | None = None
) -> PendingConnection:
    """Nothing is connected and no secret looked up yet; a password that a person must type is
    typed into the console. `taken`: the names that others have; `turns`: theirs. UsageError,
    ConnectionFailedError.
    """
    credentials = profile.credentials()
    credentials.defer_typing()
    database = profile.open(credentials)
    name = free_name(database.label, taken)
    feed = Sampler(
        database,
        interval_seconds=profile.interval_seconds,
        stuck_after_seconds=profile.stuck_after_seconds,
        name=name,
        turns=turns,
    )
    conn = open_connection(profile, database, name, credentials)
    return PendingConnection(conn, feed, rights_text(profile, database))


def free_name(label: str, taken: Collection[str]) -> str:
    """The label, numbered where another connection has the same."""
    name, number = label, 1
    while name in taken:
        number += 1
        name = f"{label} ({number})"
    return name


def rights_text(profile: Profile, database: Database) -> Callable[[Login | None], str]:
    """What may be done, and who sees to it, once that is known."""
    transactions = bool(database.product.read_only_options)
    return lambda login: ConnectionRights(profile.rights, login, transactions=transactions).words


# What the console sees is kept while it runs: a recorder a connection, fed by the feeds' threads.
#
# Nothing here is called in the event loop but what only reads words, or says that it is over.

RETRY_SECONDS = 30.0
"""A connection that another console records may be left by it; a full disk may be cleared."""
_SECONDS_AT_THE_END = 0.5


class ConnectionRecorder:
    """The recording of one connection, begun with its first reading."""

    def __init__(
        self,
        root: Path,
        conn: OpenConnection,
        monotonic: Callable[[], float] = time.monotonic,
        *,
        slower: float = 1.0,
    ) -> None:
        """`slower`: what is dearer than samples is done so many times more seldom."""
        self._root = root
        self._conn = conn
        self._slower = slower
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._ended = False
        self._recorder: Recorder | None = None
        self._beside: WaitsAndActions | None = None
        self._why_not = ""
        self._elsewhere = False
        self._retry_at = 0.0

    # In the threads of the feed and the doctor.

    def on_reading(self, reading: Reading) -> None:
        with self._lock:
            if not self._ended and self._recorder is None and self._monotonic() >= self._retry_at:
                self._open()
            beside = self._beside
        if beside is not None:
            beside.sampled(reading)

    def add_diagnoses(self, diagnoses: Sequence[Diagnosis]) -> None:
        """Keep what the doctor found, and whom it saw."""
        from console.doctor.recording import consumers, findings  # noqa: PLC0415  # as below

        recorder = self._recorder
        if recorder is not None:
            at = datetime.now(UTC)
            recorder.add(FINDINGS, findings(diagnoses, at))
            recorder.add(CONSUMERS, consumers(diagnoses, at))

    def _open(self) -> None:
        # Loaded in the feed's thread: the console shall start at once.
        from console.doctor.recording import WaitsAndActions  # noqa: PLC0415

        self._retry_at = self._monotonic() + RETRY_SECONDS
        conn = self._conn
        try:
            bounds = Bounds(segment_seconds=SEGMENT_SECONDS * self._slower)
            recorder = Recorder(self._root, conn.name, bounds, apart=True)
        except RefusedError:
            self._elsewhere, self._why_not = True, ""
            return
        except ConsoleError as error:
            # The cause first: of a long path the end is cut off.
            where, _, why = (error.why or error.what).rpartition(": ")
            self._elsewhere, self._why_not = False, f"not recorded: {why}: {where}"
            return
        self._elsewhere, self._why_not = False, ""
        # The readings, and what the doctor finds, come from the console's watcher.
        beside = WaitsAndActions(conn.database, recorder, slower=self._slower)
        beside.start()
        self._recorder, self._beside = recorder, beside
        if self._ended:
            self.stop()

    # Anywhere.

    @property
    def problem(self) -> str:
        """Why nothing is recorded, though it should be: one safe line; empty: nothing is wrong."""
        recorder = self._recorder
        return first_line(recorder.problem if recorder is not None else self._why_not)

    @property
    def status(self) -> str:
        """How it stands, for a person; safe to show."""
        if self._elsewhere:
            return "recorded by another console"
        if self.problem:
            return self.problem
        return "not recorded yet" if self._recorder is None else f"recorded to {self._root}"

    def stop(self) -> None:
        """Keep nothing more; waits for nobody."""
        # Not for the lock either: whoever has it may be waiting for a disk.
        self._ended = True
        beside, recorder = self._beside, self._recorder
        if beside is not None:
            beside.stop()
        if recorder is not None:
            recorder.end()

    def wait(self, until: float) -> None:
        """Until its segment is closed, or that moment; who starts next closes what is left."""
        recorder = self._recorder
        if recorder is not None:
            recorder.close(max(0.0, until - time.monotonic()))


class Recordings:
    """All that a console keeps, under one folder."""

    def __init__(self, root: Path, *, slower: float = 1.0) -> None:
        self.root = root
        self._slower = slower
        self._of: dict[str, ConnectionRecorder] = {}

    def add(self, conn: OpenConnection) -> ConnectionRecorder | None:
        """One more connection; None: it is configured not to be recorded."""
        if not conn.record:
            return None
        self._of[conn.name] = ConnectionRecorder(self.root, conn, slower=self._slower)
        return self._of[conn.name]

    def get(self, name: str) -> ConnectionRecorder | None:
        return self._of.get(name)

    def status(self, name: str) -> str:
        found = self.get(name)
        return "not recorded: record = false" if found is None else found.status

    @property
    def problem(self) -> str:
        """The first connection that is not recorded though it should be, and why."""
        for name, one in self._of.items():
            if one.problem:
                return f"{first_line(name)}: {one.problem}"
        return ""

    def stop(self) -> None:
        """Keep nothing more; waits for nobody."""
        for one in self._of.values():
            one.stop()

    def wait(self, seconds: float = _SECONDS_AT_THE_END) -> None:
        """Give the segments a moment to be closed, all of them together."""
        until = time.monotonic() + seconds
        for one in self._of.values():
            one.wait(until)
