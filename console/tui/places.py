"""A connection as screens work with it: its database, what may be done there, what is hidden."""

from dataclasses import dataclass, field
from datetime import UTC, tzinfo

from sqlalchemy import URL

from console import catalog
from console.catalog import Queue
from console.config import Profile
from console.config.keys import URL as URL_KEY
from console.config.passwords import Credentials
from console.engines import Database
from console.monitor.limits import ThresholdsOf, defaults_of
from console.monitor.message import Masks
from console.monitor.saved import Words
from console.rights import Rights


@dataclass(frozen=True)
class Place:
    """One connection. Whatever asks its database waits: only jobs do that."""

    name: str
    """As the screen and the board call it."""
    database: Database
    rights: Rights = Rights.READ_ONLY
    thresholds_of: ThresholdsOf = defaults_of
    masks: Masks = ()
    zone: tzinfo | None = UTC
    production: bool = False
    """Marked so where it is configured; its catalog may do so too."""
    words: tuple[str, ...] = ()
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

    def find(self, schema: str, name: str) -> Queue:
        """The queue of that name, as the catalog has it now. Waits; ConsoleError."""
        with self.database.transaction("read the catalog", read_only=True) as connection:
            return catalog.find(connection, self.database.product, name, schema)


def place_of(
    profile: Profile, database: Database, name: str, credentials: Credentials | None = None
) -> Place:
    """The place that a profile describes."""
    return Place(
        name,
        database,
        profile.rights,
        profile.thresholds,
        profile.masks,
        profile.display_zone,
        profile.production,
        ("--profile", profile.name) if profile.name else url_words(database),
        credentials,
        profile.shown_url,
        str(profile.settings.value(URL_KEY).origin),
        profile.record,
        profile.color or "",
        profile.saved_words,
    )


def url_words(database: Database) -> tuple[str, ...]:
    """A database named by its URL, without its password."""
    url = database.url
    bare = URL.create(url.drivername, url.username, None, url.host, url.port, url.database)
    return ("--url", bare.update_query_dict(url.query).render_as_string())
