"""Half messages of a split queue: a row without its payload, a payload without its row.

Both tables are looked at from the newest id down, so that what waits to be popped comes first.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from console.catalog import Kind, Queue
from console.doctor import stretches
from console.doctor.checks import (
    LOCK_SECONDS,
    STATEMENT_SECONDS,
    ask,
    can_ask,
    checked,
    counted,
    some,
    texts,
)
from console.doctor.finding import Code, Finding, Severity
from console.doctor.look import Look
from console.doctor.repairs import Halves, SetAside, halves_of
from console.doctor.stretches import NEWEST, Bound
from console.monitor.asking import be_careful

Row = TypeVar("Row", Halves, "AloneRow")

_WHAT = "halves of messages"
_ALONE = "payloads without a message"
_SHOWN = 10
_CAUSE = "a row of one of the two tables was deleted by hand, or only one of them was restored"

PAYLOAD_MISSING = Code(
    "payload_missing",
    Severity.CRITICAL,
    "rows of a split queue without a payload, ready or in a stuck claim: a pop gets nothing of it",
)
PAYLOAD_LOST = Code(
    "payload_lost", Severity.NOTE, "rows of a split queue in other states have no payload"
)
PAYLOAD_ALONE = Code(
    "payload_alone", Severity.NOTE, "payloads of a split queue that belong to no message"
)

CODES: tuple[Code, ...] = (PAYLOAD_MISSING, PAYLOAD_LOST, PAYLOAD_ALONE)


def applies(queue: Queue) -> bool:
    """Whether its messages have two halves."""
    return queue.design.shape == "split" and queue.kind is Kind.INSTALLED


def examine(look: Look) -> Iterator[Finding]:
    """Every finding; what cannot be told goes to `look.unseen`."""
    if applies(look.queue):
        yield from checked(look, _WHAT, _without_payload)
        yield from checked(look, _ALONE, _alone)


@dataclass(frozen=True)
class AloneRow:
    """What the statement `alone` returns."""

    looked: int
    lowest: int | None
    alone: int
    alone_ids: Any


@dataclass
class _Found:
    count: int = 0
    ids: list[str] = field(default_factory=list)
    stretches: list[int] = field(default_factory=list)
    """The newest id of each stretch that has some."""

    def add(self, count: int, ids: Any, newest: int) -> None:
        if count:
            self.count += count
            self.ids = (self.ids + texts(ids))[:_SHOWN]
            self.stretches.append(newest)


def _without_payload(look: Look) -> Iterator[Finding]:
    queue = look.queue
    if not can_ask(look, _WHAT, "halves"):
        return
    ready, stuck, kept = _Found(), _Found(), _Found()
    for newest, row in _walk(look, _WHAT, _halves):
        ready.add(row.ready, row.ready_ids, newest)
        stuck.add(row.stuck, row.stuck_ids, newest)
        kept.add(row.kept, row.kept_ids, newest)
    if ready.count or stuck.count:
        yield _missing(look, ready, stuck)
    if kept.count:
        yield Finding(
            PAYLOAD_LOST,
            f"{counted(kept.count, 'row')} without a payload, neither ready nor stuck",
            evidence={"count": kept.count, "ids": kept.ids},
            cause=_CAUSE,
            consequence="they cannot be archived or requeued: there is nothing to move. Insert "
            f'the payload into "{queue.name}_data" from a backup, or delete the rows',
        )


def _missing(look: Look, ready: _Found, stuck: _Found) -> Finding:
    single = look.queue.options.get("dequeue") == "single"
    states = {"ready": ready, "claimed": stuck}
    words = [f"{one.count:,} {state}" for state, one in states.items() if one.count]
    ids = [*ready.ids, *stuck.ids][:_SHOWN]
    count = ready.count + stuck.count
    return Finding(
        PAYLOAD_MISSING,
        f"{counted(count, 'row')} without a payload ({', '.join(words)}): "
        + some(ids, most=3, between=", "),
        evidence={
            "count": count,
            "ids": ids,
            **{state: {"count": one.count, "ids": one.ids} for state, one in states.items()},
        },
        cause=_CAUSE,
        consequence="a pop that meets one at the head returns nothing, as if the queue were "
        "empty, and all behind it wait; the payload is lost unless a backup has it"
        if single
        else "a pop claims it and returns no row for it, and no release takes the claim; the "
        "payload is lost unless a backup has it",
        repair=SetAside(
            look.queue,
            count,
            look.thresholds.stuck_after_seconds,
            tuple(dict.fromkeys(sorted((*ready.stretches, *stuck.stretches), reverse=True))),
        ),
    )


def _halves(look: Look, newest: int) -> Halves:
    with look.moment() as connection:
        be_careful(connection, look.database, STATEMENT_SECONDS, LOCK_SECONDS)
        found, _ = halves_of(
            connection,
            look.database.product,
            look.queue,
            look.thresholds.stuck_after_seconds,
            newest=newest,
            most=stretches.STRETCH,
        )
    return found


def _alone(look: Look) -> Iterator[Finding]:
    if not can_ask(look, _ALONE, "alone"):
        return
    alone = _Found()

    def stretch(look: Look, newest: int) -> AloneRow:
        (row,) = ask(look, AloneRow, "alone", newest=newest, most=stretches.STRETCH)
        return row

    for newest, row in _walk(look, _ALONE, stretch):
        alone.add(row.alone, row.alone_ids, newest)
    if alone.count:
        yield Finding(
            PAYLOAD_ALONE,
            f"{counted(alone.count, 'payload')} without a message",
            evidence={"count": alone.count, "ids": alone.ids},
            cause=_CAUSE,
            consequence="they take room and no verb sees them",
        )


def _walk(look: Look, what: str, stretch: Callable[[Look, int], Row]) -> Iterator[tuple[int, Row]]:
    """Each stretch with the id that it began at."""
    bound, newest = Bound(look.patience_seconds), NEWEST
    while True:
        row = stretch(look, newest)
        yield newest, row
        if row.looked < stretches.STRETCH or row.lowest is None:
            return
        newest = row.lowest - 1
        if not bound.goes_on(row.looked):
            look.unseen.append(f"{what}: {bound.told} looked at, those up to id {newest} not")
            return
