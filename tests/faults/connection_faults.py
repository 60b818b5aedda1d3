"""Connections that are cut or fall silent at a chosen packet; queues that must lose nothing."""

from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from console.engines import open_database
from tests.proxy import Fate, Proxy
from tests.servers import connect
from tests.tui.acting import make

LIMIT = 60.0
"""Seconds that a verb may take with short time-outs when the server does not respond."""
FATES = (Fate.CUT, Fate.UNANSWERED)


def make_queues(url: str) -> None:
    """A queue that keeps its rows, a ring, and one that deletes."""
    with closing(open_database(url)) as database:
        make(database, "mail", "claim", {"payload": "text"})
        make(database, "orders", "ring", {"size": "50"})
        make(database, "lines", "fifo", {})


def plain(proxy: Proxy) -> str:
    """Its URL without encryption, so that a driver connects only once."""
    return f"{proxy.url}?sslmode=disable&gssencmode=disable"


@dataclass
class Cutter:
    """Lets so many pieces of a verb pass; the one after them has a fate. Then nothing more passes
    or, where the network heals, everything."""

    pieces: int
    fate: Fate
    lasts: Callable[[], object] = lambda: None
    happened: bool = False

    def __call__(self, _: bytes) -> Fate:
        if self.happened:
            return Fate.PASSES
        self.pieces -= 1
        if self.pieces >= 0:
            return Fate.PASSES
        self.happened = True
        self.lasts()
        return self.fate


@dataclass
class AtCommit:
    """Has a fate for the first commit after certain bytes."""

    after: bytes
    fate: Fate
    then: Callable[[], object] = lambda: None
    seen: bool = False
    happened: bool = False

    def __call__(self, data: bytes) -> Fate:
        self.seen = self.seen or self.after in data
        if self.happened or not self.seen or b"COMMIT\0" not in data:
            return Fate.PASSES
        self.happened = True
        self.then()
        return self.fate


def rows_of(url: str) -> Counter[str]:
    """All messages of each queue and its archive."""
    with connect(url) as connection:
        found = connection.execute(
            "SELECT 'mail', payload FROM mail UNION ALL SELECT 'mail', payload FROM mail_archive"
            " UNION ALL SELECT 'orders', message FROM orders WHERE message_id IS NOT NULL"
            " UNION ALL SELECT 'lines', payload FROM lines"
        )
        return Counter(f"{queue}: {payload}" for queue, payload in found.fetchall())


def moved(before: Counter[str], after: Counter[str]) -> tuple[int, int]:
    """How many were added, and how many removed."""
    return (after - before).total(), (before - after).total()
