"""Reads from the audit what was repaired without a person, and what has stopped."""

from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from console import catalog, sql
from console.catalog import Queue, lookups
from console.catalog.audit import LIST_MOST, EntryFilter, entries
from console.features.unattended.policy import STOP, USUAL_SECONDS, Audited, repairs_of, stops_of

if TYPE_CHECKING:
    from sqlalchemy import Connection

_MOST = 10_000
"""Repairs of `USUAL_SECONDS`: fifty an hour."""


def may_have(connection: "Connection", queue: Queue) -> bool:
    """Whether a recorder may have done anything to the queue, or stopped."""
    by_agents = lookups.once("agents", lambda: entries(connection, EntryFilter(by_agent=True)))
    of = (queue.schema, queue.name)
    return len(by_agents) >= LIST_MOST or any((e.schema, e.queue) == of for e in by_agents)


def read(connection: "Connection", queue: Queue, since_seconds: float = USUAL_SECONDS) -> Audited:
    """`since_seconds`: how far back repairs are read; stops last longer."""
    now = sql.value(connection, datetime, "actions.server_time")
    if not catalog.has_audit(connection):
        return Audited(now)
    of = EntryFilter(queue.schema, queue.name, by_agent=True)
    stops = entries(connection, replace(of, verb=STOP))
    made = entries(connection, replace(of, since=since_seconds), _MOST)
    if not stops and not made:
        return Audited(now)
    latest = entries(connection, replace(of, by_agent=False), 1)
    person = latest[0].started_at if latest else None
    return Audited(now, repairs_of(made), stops_of(stops, person, now), person)
