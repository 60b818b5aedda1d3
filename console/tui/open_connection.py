"""A connection as screens use it: its rights and masks."""

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import UTC, tzinfo

from console import catalog
from console.catalog import Queue
from console.config import Profile, Settings
from console.config.passwords import Credentials
from console.config.profile import URL as URL_KEY
from console.engines import THIS_MACHINE, TRANSPORT, Capabilities, Database
from console.filters import Words
from console.monitor.limits import ThresholdsOf, defaults_of
from console.monitor.message import Masks
from console.monitor.sampler import Sampler, WorkLimiter, probe
from console.rights import ConnectionRights, Login, Rights
from console.tui.store import RightsText


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
    settings_of: Callable[[str], Settings] = lambda _: Settings(())
    """The settings of the queue of that name."""

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
        profile.settings_of,
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
