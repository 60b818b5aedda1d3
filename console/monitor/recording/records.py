"""The kinds of records, one table each: names and types of their columns, and rows of them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from console.monitor.sampler import Reading
from console.monitor.snapshot import QueueSnapshot

VERSION = 1
"""Of the lines and files. A reader skips what is newer, and takes what older ones lack as null."""

Row = Mapping[str, object]

TIME, TEXT, COUNT, NUMBER = "time", "text", "count", "number"
"""Types: a moment in UTC to the microsecond, a string, a whole number, a float. All may be null."""


@dataclass(frozen=True, eq=False)
class Kind:
    """One kind of record, each of its own. All begin with `at`: when, by the console's clock."""

    name: str
    columns: Mapping[str, str]


_FIGURES = {
    "ready": COUNT,
    "scheduled": COUNT,
    "claimed": COUNT,
    "stuck": COUNT,
    "errors": COUNT,
    "done": COUNT,
    "age_seconds": NUMBER,
    "push_per_second": NUMBER,
    "pop_per_second": NUMBER,
    "gap": COUNT,
    "capacity": COUNT,
    "holders": COUNT,
    "held_seconds": NUMBER,
}
_QUEUE = {"at": TIME, "schema": TEXT, "queue": TEXT}

SAMPLES = Kind(
    "samples",
    {
        **_QUEUE,
        "design": TEXT,
        **_FIGURES,
        "latency_seconds": NUMBER,
        "estimated": TEXT,
        "unknown": TEXT,
        "problem": TEXT,
        "next_seconds": NUMBER,
    },
)
"""A queue at one look. `estimated` and `unknown` name figures, with commas between them.

`next_seconds`: the pause that was meant to follow; older recordings do not tell it.
"""
LINKS = Kind(
    "links",
    {
        "at": TIME,
        "latency_seconds": NUMBER,
        "queues": COUNT,
        "error": TEXT,
        "next_seconds": NUMBER,
    },
)
"""A look at a connection: how long it took, or why it failed, and when the next one was due."""
WAITS = Kind("waits", {**_QUEUE, "kind": TEXT, "wait": TEXT, "sessions": COUNT})
"""How many sessions waited for what at a moment; without a queue: in the whole database."""
FINDINGS = Kind(
    "findings", {**_QUEUE, "verdict": TEXT, "code": TEXT, "severity": TEXT, "summary": TEXT}
)
"""What the doctor found at one look, a row each; a row without a code where there was nothing."""
ACTIONS = Kind(
    "actions",
    {
        **_QUEUE,
        "action_id": COUNT,
        "verb": TEXT,
        "ended_at": TIME,
        "operator": TEXT,
        "outcome": TEXT,
        "planned": COUNT,
        "done": COUNT,
        "skipped": COUNT,
        "failed": COUNT,
    },
)
"""An operator's action, when it began and again when it ended."""

KINDS = {kind.name: kind for kind in (SAMPLES, LINKS, WAITS, FINDINGS, ACTIONS)}


def samples(reading: Reading, at: datetime) -> Iterator[Row]:
    """The queues of a look that went well."""
    for one in reading.queues:
        yield {
            "at": at,
            "schema": one.schema,
            "queue": one.queue,
            "design": one.design,
            **{name: getattr(one, name) for name in _FIGURES},
            "latency_seconds": reading.latency_seconds,
            "estimated": ",".join(one.estimated),
            "unknown": ",".join(one.unknown),
            "problem": one.problem,
            "next_seconds": reading.next_seconds,
        }


def link(reading: Reading, at: datetime) -> Row:
    """The look itself."""
    error = reading.error
    return {
        "at": at,
        "latency_seconds": None if error else reading.latency_seconds,
        "queues": None if error else len(reading.queues),
        "error": None if error is None else error.what,
        "next_seconds": reading.next_seconds,
    }


def snapshot_of(row: Row, connection: str) -> QueueSnapshot:
    """The figures of a queue as they were, from a row of SAMPLES."""
    figures = {name: row.get(name) for name in _FIGURES}
    return QueueSnapshot(
        queue=str(row["queue"] or ""),
        design=str(row.get("design") or "?"),
        schema=str(row["schema"] or ""),
        connection=connection,
        estimated=_names(row.get("estimated")),
        unknown=_names(row.get("unknown")),
        problem=str(row.get("problem") or ""),
        **figures,  # type: ignore[arg-type]  # by name, as `samples` has written them
    )


def _names(words: object) -> tuple[str, ...]:
    return tuple(filter(None, str(words or "").split(",")))
