"""A connection as screens use it: its rights, masks and recorder."""

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
from console.engines import THIS_MACHINE, TRANSPORT, Capabilities, Database
from console.errors import ConsoleError, RefusedError
from console.filters import Words
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
    """The result of testing a connection."""

    capabilities: Capabilities
    login: Login | None
    seconds: float
    """To connect and query."""


@dataclass(frozen=True)
class OpenConnection:
    """One connection. Queries to its database block: only jobs make them."""

    name: str
    """Its name on the screen and in the store."""
    database: Database
    rights: Rights = Rights.READ_ONLY
    thresholds_of: ThresholdsOf = defaults_of
    masks: Masks = ()
    zone: tzinfo | None = UTC
    production: bool = False
    """In the configuration; the catalog may say so too."""
    cli_options: tuple[str, ...] = ()
    """`--profile NAME` or `--url URL`, never with a password."""
    credentials: Credentials | None = None
    """For its password, which may have to be typed."""
    url: str = ""
    """For display, without secrets."""
    origin: str = ""
    """Where the URL comes from: a file and its line, a variable, the command line."""
    record: bool = True
    """Whether it is recorded, in a console that records."""
    color: str = ""
    """Of the mark beside its name; empty: none."""
    filters: Words = field(default_factory=dict)
    """The saved filters for its messages."""
    bell: bool = False
    """Whether a new critical finding rings the terminal's bell."""
    group: str = ""
    """Empty: it belongs to none."""

    def find(self, schema: str, name: str) -> Queue:
        """The queue of that name, from the catalog. Blocks; ConsoleError."""
        return catalog.look_up(self.database, name, schema)

    def test(self) -> ConnectionTest:
        """Connect, and query what the login can do. Blocks; ConsoleError."""
        self.database.forget_capabilities()
        began = time.monotonic()
        capabilities = self.database.capabilities
        return ConnectionTest(capabilities, probe(self.database, []), time.monotonic() - began)


def missing_right(has: Rights, wanted: Rights) -> str:
    """Why a right does not suffice; empty if it does."""
    if has >= wanted:
        return ""
    return f"it needs the right {wanted.word}; this connection has {has.word}"


def why_not_allowed(conn: OpenConnection | None, wanted: Rights) -> str:
    """The same for a connection, which may not exist."""
    if conn is None:
        return "there is no such connection here"
    standby = conn.database.seen_standby if wanted > Rights.READ_ONLY else None
    return missing_right(conn.rights, wanted) or ("" if standby is None else standby.no_writes)


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
    """`--url URL`, without its password."""
    url = database.url
    bare = type(url).create(url.drivername, url.username, None, url.host, url.port, url.database)
    return ("--url", bare.update_query_dict(url.query).render_as_string())


@dataclass(frozen=True)
class PendingConnection:
    """A connection that is about to be sampled, and its sampler."""

    conn: OpenConnection
    feed: Sampler
    rights: RightsText


def open_profile(
    profile: Profile, taken: Collection[str] = (), turns: WorkLimiter | None = None
) -> PendingConnection:
    """Connects to nothing and looks up no secret yet; if a password has to be typed, the console
    asks for it. `taken`: names in use; `turns`: shared with others. UsageError,
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
    """The label, numbered if it is taken."""
    name, number = label, 1
    while name in taken:
        number += 1
        name = f"{label} ({number})"
    return name


def rights_text(profile: Profile, database: Database) -> Callable[[Login | None], str]:
    """What may be done and who enforces it, once the login is known."""
    transactions = bool(database.product.read_only_options)

    def words(login: Login | None) -> str:
        rights = ConnectionRights(profile.rights, login, transactions=transactions).words
        known = database.known_capabilities
        protection = "" if known is None else known.facts.get(TRANSPORT, THIS_MACHINE)
        return rights if protection in {"", THIS_MACHINE} else f"{rights}; {protection}"

    return words


# While the console runs it records: one recorder per connection, fed by the feeds' threads.
#
# The event loop only reads the status and stops it.

RETRY_SECONDS = 30.0
"""Another console may stop recording the connection; a full disk may be cleared."""
_SECONDS_AT_THE_END = 0.5


class ConnectionRecorder:
    """Records one connection, from its first reading on."""

    def __init__(
        self,
        root: Path,
        conn: OpenConnection,
        monotonic: Callable[[], float] = time.monotonic,
        *,
        slower: float = 1.0,
    ) -> None:
        """`slower`: the factor by which everything costlier than samples is done less often."""
        self._root = root
        self._conn = conn
        self._slower = slower
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._stopped = False
        self._recorder: Recorder | None = None
        self._waits_and_actions: WaitsAndActions | None = None
        self._why_not = ""
        self._recorded_elsewhere = False
        self._retry_at = 0.0

    # In the threads of the feed and the doctor.

    def on_reading(self, reading: Reading) -> None:
        with self._lock:
            if not self._stopped and self._recorder is None and self._monotonic() >= self._retry_at:
                self._open()
            waits_and_actions = self._waits_and_actions
        if waits_and_actions is not None:
            waits_and_actions.sampled(reading)

    def add_diagnoses(self, diagnoses: Sequence[Diagnosis]) -> None:
        """Record findings and consumers."""
        from console.doctor.recording import consumers, findings  # noqa: PLC0415  # as below

        recorder = self._recorder
        if recorder is not None:
            at = datetime.now(UTC)
            recorder.add(FINDINGS, findings(diagnoses, at))
            recorder.add(CONSUMERS, consumers(diagnoses, at))

    def _open(self) -> None:
        # Imported in the feed's thread, so that the console starts at once.
        from console.doctor.recording import WaitsAndActions  # noqa: PLC0415

        self._retry_at = self._monotonic() + RETRY_SECONDS
        conn = self._conn
        try:
            bounds = Bounds(segment_seconds=SEGMENT_SECONDS * self._slower)
            recorder = Recorder(self._root, conn.name, bounds, apart=True)
        except RefusedError:
            self._recorded_elsewhere, self._why_not = True, ""
            return
        except ConsoleError as error:
            # The cause first: of a long path the end is cut off.
            path_text, _, why = (error.why or error.what).rpartition(": ")
            self._recorded_elsewhere, self._why_not = False, f"not recorded: {why}: {path_text}"
            return
        self._recorded_elsewhere, self._why_not = False, ""
        # Readings and findings come from the console's watcher.
        waits_and_actions = WaitsAndActions(conn.database, recorder, slower=self._slower)
        waits_and_actions.start()
        self._recorder, self._waits_and_actions = recorder, waits_and_actions
        if self._stopped:
            self.stop()

    # In any thread.

    @property
    def problem(self) -> str:
        """Why nothing is recorded although it should be: one safe line; or empty."""
        recorder = self._recorder
        return first_line(recorder.problem if recorder is not None else self._why_not)

    @property
    def status(self) -> str:
        """For display; safe to show."""
        if self._recorded_elsewhere:
            return "recorded by another console"
        if self.problem:
            return self.problem
        return "not recorded yet" if self._recorder is None else f"recorded to {self._root}"

    def stop(self) -> None:
        """Stop recording, without waiting."""
        # Not even for the lock: its holder may be waiting for a disk.
        self._stopped = True
        waits_and_actions, recorder = self._waits_and_actions, self._recorder
        if waits_and_actions is not None:
            waits_and_actions.stop()
        if recorder is not None:
            recorder.end()

    def wait(self, until: float) -> None:
        """Wait until its segment is closed, or until then; the next recorder closes the rest."""
        recorder = self._recorder
        if recorder is not None:
            recorder.close(max(0.0, until - time.monotonic()))


class Recordings:
    """The recorders of a console, which share one folder."""

    def __init__(self, root: Path, *, slower: float = 1.0) -> None:
        self.root = root
        self._slower = slower
        self._by_name: dict[str, ConnectionRecorder] = {}

    def add(self, conn: OpenConnection) -> ConnectionRecorder | None:
        """Add a connection; None: it is configured not to be recorded."""
        if not conn.record:
            return None
        self._by_name[conn.name] = ConnectionRecorder(self.root, conn, slower=self._slower)
        return self._by_name[conn.name]

    def get(self, name: str) -> ConnectionRecorder | None:
        return self._by_name.get(name)

    def status(self, name: str) -> str:
        recorder = self.get(name)
        return "not recorded: record = false" if recorder is None else recorder.status

    @property
    def problem(self) -> str:
        """The first connection that is not recorded although it should be, and why."""
        for name, one in self._by_name.items():
            if one.problem:
                return f"{first_line(name)}: {one.problem}"
        return ""

    def stop(self) -> None:
        for recorder in self._by_name.values():
            recorder.stop()

    def wait(self, seconds: float = _SECONDS_AT_THE_END) -> None:
        """Wait a moment for all segments to be closed."""
        until = time.monotonic() + seconds
        for recorder in self._by_name.values():
            recorder.wait(until)
