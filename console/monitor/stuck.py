"""Claims of a queue with what the server says of their owners, the oldest first; a page of them."""

from dataclasses import dataclass

from console.catalog import Queue
from console.engines import Database
from console.monitor.filters import Filters
from console.monitor.messages import look
from console.monitor.owners import Claim, Evidence, evidence_of, owner_of

MOST = 200
"""So many claims are looked at."""


@dataclass(frozen=True)
class Claims:
    """The oldest claims of a queue."""

    claims: tuple[Claim, ...]
    more: bool
    """Whether there are others, younger than these."""


def claims(database: Database, queue: Queue, limit: int = MOST) -> Claims:
    """The oldest claims and the evidence about their owners. UsageError where there are none."""
    page = look(database, queue, Filters(state="claimed"), limit=limit)
    owners = {m.key: owner_of(m.claimed_by, queue) for m in page.messages}
    sessions = [owner.session for owner in owners.values() if owner is not None]
    with database.transaction("look at the owners of claims", read_only=True) as connection:
        evidence = evidence_of(connection, database.product, sessions, queue)
    found = []
    for message in page.messages:
        owner = owners[message.key]
        told = (message.id or "", message.age_seconds, message.claimed_by, message.attempts)
        if owner is None:
            found.append(Claim(*told))
            continue
        alive = evidence.get(owner.session, Evidence.UNKNOWN)
        found.append(Claim(*told, owner.session, owner.bound, owner.consumer, alive))
    return Claims(tuple(found), page.next is not None or not page.complete)


def evidence(database: Database, queue: Queue, claimed_by: str | None) -> Evidence:
    """What the server says of the owner that a row names."""
    owner = owner_of(claimed_by, queue)
    if owner is None:
        return Evidence.UNKNOWN
    with database.transaction("look at the owner of a claim", read_only=True) as connection:
        found = evidence_of(connection, database.product, [owner.session], queue)
    return found.get(owner.session, Evidence.UNKNOWN)
