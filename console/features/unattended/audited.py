"""Reads from the audit what was repaired without a person, and what has stopped."""

from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from console import catalog, sql
from console.catalog import Queue
from console.catalog.audit import EntryFilter, entries
from console.features.unattended.policy import STOP, USUAL_SECONDS, Audited, repairs_of, stops_of

if TYPE_CHECKING:
    from sqlalchemy import Connection

_MOST = 10_000
"""Repairs of `USUAL_SECONDS`: fifty an hour."""


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
