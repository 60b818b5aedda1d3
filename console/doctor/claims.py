"""Queues that keep what was popped: claims and their owners, and states that are contradictory."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from console import sql
from console.actions.release import living
from console.actions.rows import Shelf, scope
from console.catalog import Kind, Queue
from console.designs import Flow
from console.doctor.checks import ago, ask, can_ask, checked, counted, follows, texts
from console.doctor.finding import Code, Finding, Severity
from console.doctor.look import Look
from console.doctor.repairs import ReleaseClaims
from console.engines import Product
from console.formats import duration
from console.monitor.owners import Evidence, Owner, evidence_of, owner_of
from console.monitor.walked import Source

_SHOWN = 10

STATUS = Code(
    "status_unknown", Severity.WARNING, "rows whose status is none of 0 to 4: no verb sees them"
)
GONE = Code("claims_gone", Severity.WARNING, "claims whose owner is gone")
ALIVE = Code(
    "claims_alive", Severity.WARNING, "claims for longer than the threshold, whose owner is alive"
)
UNKNOWN = Code(
    "claims_unknown",
    Severity.WARNING,
    "claims for longer than the threshold, of whose owner nobody can tell",
)
NOBODY = Code("claims_nobody", Severity.WARNING, "claimed rows that name no claimant")
ILLEGAL = Code(
    "state_illegal",
    Severity.WARNING,
    "rows whose columns contradict their state: claimed or in error without a time, done with an "
    "error",
)

CODES: tuple[Code, ...] = (STATUS, GONE, ALIVE, UNKNOWN, NOBODY, ILLEGAL)


def applies(queue: Queue) -> bool:
    """Whether it keeps what was popped."""
    return "claimed" in queue.states and queue.finishes and queue.design.name != "broker"


def examine(look: Look) -> Iterator[Finding]:
    """Every finding; what cannot be told goes to `look.unseen`."""
    if not applies(look.queue):
        return
    yield from checked(look, "claims and their owners", _claims)
    yield from checked(look, "states of rows", _illegal)


IN_HAND = {"claims", "errors_lately"}
"""The statements of doctor.sql that are about claimed rows, wherever these lie."""


def scope_of(product: Product, queue: Queue) -> sql.Scope:
    """Where the rows lie that are claimed: a ring's in its own table for that."""
    if queue.design.flow is Flow.NUMBERS:
        id_type = product.id_types[queue.design.id_type]
        source = Source(product, queue, queue.options.get("payload", "text"), id_type)
        return scope(source, Shelf.IN_HAND)
    return queue.scope(product)


@dataclass(frozen=True)
class _OwnerRow:
    claimed_by: str | None
    claims: int
    old: int
    oldest_seconds: float | None
    ids: Any


@dataclass(frozen=True)
class _Owned:
    """The claims of one owner, after a look at him."""

    row: _OwnerRow
    owner: Owner | None
    evidence: Evidence

    @property
    def count(self) -> int:
        """How many of them `release` would let go, by its own rules."""
        bound = self.owner is not None and self.owner.bound
        if self.evidence is Evidence.GONE and bound:
            return self.row.claims
        return self.row.old

    @property
    def line(self) -> str:
        """Who it is, in words."""
        if self.owner is None:
            return self.row.claimed_by or "nobody"
        name = f" ({self.owner.consumer})" if self.owner.consumer else ""
        return self.owner.session + name


def _claims(look: Look) -> Iterator[Finding]:
    what = "claims and their owners"
    if not can_ask(look, what, "claims") or follows(look, what):
        return
    if "claimed_at" not in look.queue.roles and look.queue.design.flow is not Flow.NUMBERS:
        look.unseen.append("claims: no column tells since when they are")
        return
    owned = _owned(look)
    named = [one for one in owned if one.row.claimed_by is not None or not _names(look.queue)]
    gone = [one for one in named if one.evidence is Evidence.GONE and one.count]
    alive = [one for one in named if one.evidence is Evidence.ALIVE and one.count]
    unknown = [one for one in named if one.evidence is Evidence.UNKNOWN and one.count]
    nobody = [one for one in owned if one not in named]
    if gone:
        yield _gone(look, gone)
    if alive:
        yield _alive(look, alive)
    if unknown:
        yield _unknown(look, unknown)
    if nobody:
        yield _nobody(look, nobody)


def _names(queue: Queue) -> bool:
    """Whether a claim has to name its claimant."""
    return queue.kind is Kind.INSTALLED


def _owned(look: Look) -> list[_Owned]:
    """The claims by owner.

    They are read again after the look at the owners: one who finished and left between the two
    has no claims any more, and one who is gone does not come back.
    """
    product = look.database.product
    owners = [owner_of(row.claimed_by) for row in _read(look)]
    sessions = [None if owner is None else owner.session for owner in owners]
    if not sessions:
        return []
    with look.moment() as connection:
        told = evidence_of(connection, product, sessions)
    found = []
    for row in _read(look):
        owner = owner_of(row.claimed_by)
        session = None if owner is None else owner.session
        if session is not None and session not in sessions:
            continue
        found.append(_Owned(row, owner, told.get(session or "", Evidence.UNKNOWN)))
    return found


def _read(look: Look) -> list[_OwnerRow]:
    where = scope_of(look.database.product, look.queue)
    stuck_after = look.thresholds.stuck_after_seconds
    return ask(look, _OwnerRow, "claims", where, stuck_after=stuck_after)


def _evidence(owned: Sequence[_Owned]) -> dict[str, object]:
    shown = sorted(owned, key=lambda one: -(one.row.oldest_seconds or 0.0))[:_SHOWN]
    return {
        "claims": sum(one.count for one in owned),
        "owners": len(owned),
        "by_owner": [
            {
                "claimed_by": one.row.claimed_by,
                "claims": one.count,
                "oldest_seconds": one.row.oldest_seconds,
                "ids": texts(one.row.ids),
            }
            for one in shown
        ],
    }


def _oldest(owned: Sequence[_Owned]) -> float:
    return max((one.row.oldest_seconds or 0.0 for one in owned), default=0.0)


def _repair(look: Look, owned: Sequence[_Owned], how: str) -> ReleaseClaims:
    count = sum(one.count for one in owned)
    return ReleaseClaims(look.queue, count, look.thresholds.stuck_after_seconds, how)


def _gone(look: Look, owned: Sequence[_Owned]) -> Finding:
    count, oldest = sum(one.count for one in owned), _oldest(owned)
    bound = sum(one.count for one in owned if one.owner is not None and one.owner.bound)
    limit = duration(look.thresholds.stuck_after_seconds)
    return Finding(
        GONE,
        f"{counted(count, 'claim')} whose owner is gone, the oldest for {duration(oldest)}",
        evidence=_evidence(owned) | {"bound": bound},
        cause="their consumers died or left without complete or fail; a claim counts if it was "
        f"bound to its session, or is older than {limit}",
        consequence="nobody works on these messages, and no pop returns them",
        since=ago(oldest),
        repair=_repair(look, owned, "gone"),
    )


def _alive(look: Look, owned: Sequence[_Owned]) -> Finding:
    count, oldest = sum(one.count for one in owned), _oldest(owned)
    who = _living(look, owned)
    return Finding(
        ALIVE,
        f"{counted(count, 'claim')} for longer than "
        f"{duration(look.thresholds.stuck_after_seconds)}, by {who or 'sessions that are there'}",
        evidence=_evidence(owned) | {"sessions": who},
        cause="their consumers still work on them, hang, or took them and forgot them",
        consequence="no pop returns these messages until they are completed, failed or released",
        since=ago(oldest),
        repair=_repair(look, owned, "alive"),
    )


def _living(look: Look, owned: Sequence[_Owned]) -> str:
    """Who and where they are."""
    sessions = sorted({one.owner.session for one in owned if one.owner is not None})
    with look.moment() as connection:
        rows = living(connection, look.database.product, sessions[:_SHOWN])
    return "; ".join(row.line for row in rows)


def _unknown(look: Look, owned: Sequence[_Owned]) -> Finding:
    count, oldest = sum(one.count for one in owned), _oldest(owned)
    return Finding(
        UNKNOWN,
        f"{counted(count, 'claim')} for longer than "
        f"{duration(look.thresholds.stuck_after_seconds)}; nobody can tell whether their owners "
        "live",
        evidence=_evidence(owned),
        cause="who claimed them is not known to the server, or hidden from this login",
        consequence="no pop returns these messages until they are completed, failed or released",
        since=ago(oldest),
        repair=_repair(look, owned, "unknown"),
    )


def _nobody(look: Look, owned: Sequence[_Owned]) -> Finding:
    rows = sum(one.row.claims for one in owned)
    ids = [id_ for one in owned for id_ in texts(one.row.ids)]
    return Finding(
        NOBODY,
        f"{counted(rows, 'claimed row')} without a claimant",
        evidence={"count": rows, "ids": ids[:_SHOWN]},
        cause="something else than the queue's own functions claimed them",
        consequence="nobody can tell whether somebody works on them",
        since=ago(_oldest(owned)),
        repair=_repair(look, owned, "unknown"),
    )


@dataclass(frozen=True)
class _IllegalRow:
    wrong: str
    found: int
    ids: Any


_WRONG: Mapping[str, tuple[str, str]] = {
    "claimed_undated": (
        "claimed, and no time says since when",
        "they never count as stuck, so no release takes them",
    ),
    "error_undated": ("in error without a time", "no look at errors by their age finds them"),
    "done_undated": ("done without a time", "no archive by age takes them"),
    "done_with_error": ("done with an error", "one of the two is not true"),
    "error_unclaimed": (
        "in error and not claimed",
        "a pop takes them, and they count as error and as ready",
    ),
}
"""A contradiction of doctor.sql -> what it is, and what comes of it."""


def _illegal(look: Look) -> Iterator[Finding]:
    queue = look.queue
    rowed = queue.design.name in {"status", "split"} or (
        queue.design.name == "claim" and queue.kind is Kind.INSTALLED
    )
    if not rowed or not can_ask(look, "states of rows", "illegal"):
        return
    rows = {row.wrong: row for row in ask(look, _IllegalRow, "illegal")}
    if row := rows.pop("status", None):
        yield Finding(
            STATUS,
            f"{counted(row.found, 'row')} with a status that is none of 0 to 4",
            evidence={"count": row.found, "ids": texts(row.ids)},
            cause="something else than the queue's own functions wrote it",
            consequence="no pop returns them, and no verb of the console takes them",
        )
    if rows:
        words = [f"{counted(row.found, 'row')} {_WRONG[name][0]}" for name, row in rows.items()]
        yield Finding(
            ILLEGAL,
            "; ".join(words),
            evidence={
                name: {"count": row.found, "ids": texts(row.ids)} for name, row in rows.items()
            },
            cause="something else than the queue's own functions changed them",
            consequence="; ".join(_WRONG[name][1] for name in rows),
        )
