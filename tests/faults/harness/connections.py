"""Connections that are cut or hang at a chosen packet; queues that must lose nothing."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass

from console.engines import Database, Timeouts, open_database
from tests.servers import connect
from tests.servers.proxy import Fate, Proxy
from tests.tui.acting import make

LIMIT = 60.0
"""Seconds that a verb may take with short time-outs when the server does not respond."""
FATES = (Fate.CUT, Fate.UNANSWERED)


def make_queues(url: str) -> None:
    """A queue that keeps its rows, a ring, and a queue that deletes them."""
    with closing(open_database(url)) as database:
        make(database, "mail", "claim", {"payload": "text"})
        make(database, "orders", "ring", {"size": "50"})
        make(database, "lines", "fifo", {})


def unencrypted_url(proxy: Proxy) -> str:
    """Its URL without encryption, so that a driver connects only once."""
    return f"{proxy.url}?sslmode=disable&gssencmode=disable"


@contextmanager
def proxied(url: str, timeouts: Timeouts | None = None) -> Iterator[tuple[Proxy, Database]]:
    """A proxy before the server, and the database through it."""
    with (
        Proxy(url) as proxy,
        closing(open_database(unencrypted_url(proxy), timeouts=timeouts, label="here")) as database,
    ):
        yield proxy, database


@contextmanager
def held(begin: Callable[[], object], end: Callable[[], object]) -> Iterator[None]:
    """A fault that ends with the block."""
    begin()
    try:
        yield
    finally:
        end()


LOSSES: Mapping[str, Callable[[Proxy], AbstractContextManager[None]]] = {
    "cut": lambda proxy: held(proxy.refuse, proxy.let_in),
    "silent": lambda proxy: held(proxy.freeze, proxy.thaw),
}


@dataclass
class Cutter:
    """Lets `pieces` pieces of a verb pass and applies a fate to the next one. Everything after it
    passes again, unless `on_fate` ends that."""

    pieces: int
    fate: Fate
    on_fate: Callable[[], object] = lambda: None
    happened: bool = False

    def __call__(self, _: bytes) -> Fate:
        if self.happened:
            return Fate.PASSES
        self.pieces -= 1
        if self.pieces >= 0:
            return Fate.PASSES
        self.happened = True
        self.on_fate()
        return self.fate


@dataclass
class AtCommit:
    """Applies a fate to the first commit after certain bytes."""

    after: bytes
    fate: Fate
    on_commit: Callable[[], object] = lambda: None
    after_found: bool = False
    happened: bool = False

    def __call__(self, data: bytes) -> Fate:
        self.after_found = self.after_found or self.after in data
        if self.happened or not self.after_found or b"COMMIT\0" not in data:
            return Fate.PASSES
        self.happened = True
        self.on_commit()
        return self.fate


def rows_of(url: str) -> Counter[str]:
    """All messages of each queue and its archive."""
    with connect(url) as connection:
        cursor = connection.execute(
            "SELECT 'mail', payload FROM mail UNION ALL SELECT 'mail', payload FROM mail_archive"
            " UNION ALL SELECT 'orders', message FROM orders WHERE message_id IS NOT NULL"
            " UNION ALL SELECT 'lines', payload FROM lines"
        )
        return Counter(f"{queue}: {payload}" for queue, payload in cursor.fetchall())


def added_and_removed(before: Counter[str], after: Counter[str]) -> tuple[int, int]:
    """How many were added, and how many removed."""
    return (after - before).total(), (before - after).total()
