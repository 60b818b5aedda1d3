"""Requeue: errors become ready again; their attempts stay counted, their error texts are dropped.

Release: claims of disconnected consumers become ready again, proven, never by age alone. The
evidence is about the session that claimed. A consumer may have closed it and go on, so a closed
session proves something only of a claim that was bound to it or is older than the queue's
threshold."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from console import sql
from console.actions.availability import require_verb
from console.actions.canary import CanaryTracker
from console.actions.message_action import RowAction, deleted_along
from console.actions.pop import require_subscriber
from console.actions.push import require_interface
from console.actions.rows import LockedRows, Moved, Storage, by_storage, run_others_code, scope
from console.actions.selected import SelectedMessages
from console.catalog import Kind, decisions
from console.catalog.audit import Ledger
from console.catalog.decisions import Decision
from console.designs import Flow
from console.engines import Session, product_of
from console.errors import ConnectionFailedError, RefusedError, UsageError
from console.formats import duration
from console.monitor.message import Message
from console.monitor.message_count import Group
from console.monitor.owners import Evidence, claimant_evidence, owner_of
from console.monitor.scan_query import MessageSource
from console.monitor.scans import Grouping
from console.plan import warning

if TYPE_CHECKING:
    from sqlalchemy import Connection

YOUNG = "younger than the threshold, and not bound to a session that is gone"
ALIVE = "their owner is alive"
UNKNOWN = "nobody can tell whether their owner is alive"
UNDATED = "nobody can tell since when they are claimed"


_COUNTED = 10_000


@dataclass(frozen=True)
class TargetState:
    """The queue that messages are to be pushed into."""

    ready: int
    """Counted to 10,001; a ring's includes purged numbers."""
    room: int | None
    """Free slots of a ring."""
    voids: int | None
    """Slots that a relay would free."""

    @property
    def count(self) -> str:
        return _counted(self.ready - (self.voids or 0))

    def needs(self, count: int) -> tuple[list[str], list[str]]:
        """What a push of `count` messages needs, as a consequence or as an obstacle."""
        if self.room is None:
            return [], []
        needs = f"needs {count:,} slots, {self.room:,} are free"
        if count <= self.room:
            return [needs], []
        if self.voids:
            needs += f"; a relay frees {_counted(self.voids)} more, whose messages were purged"
        return [], [needs]


def _counted(number: int) -> str:
    return f"{number:,}" if number <= _COUNTED else f"more than {_COUNTED:,}"


def rule_obstacles(session: Session, source: MessageSource) -> list[str]:
    """Why the library's own rule to make a message ready cannot be applied; empty: it can."""
    if not source.queue.design.library:
        return []
    with session.transaction("look for the library's own function") as connection:
        rule = source.statement_name("rule")
        problem: str | None = sql.value(
            connection, str | None, rule, source.queue.scope(source.product)
        )
    return [problem] if problem else []


def target_state(connection: Connection, source: MessageSource) -> TargetState:
    within = scope(source, Storage.TABLE)
    return sql.row(connection, TargetState, source.statement_name("target_state"), within)


@dataclass(frozen=True)
class LiveSession:
    """A connected owner of claims."""

    session: str
    session_id: int
    user_name: str | None
    application_name: str | None
    client_address: str | None
    state: str | None

    @property
    def line(self) -> str:
        who = f"{self.user_name or '?'}, {self.application_name or '?'}"
        where = self.client_address or "this host"
        return f"session {self.session_id} ({who}) from {where}, {self.state or '?'}"


def live_sessions(connection: Connection, sessions: Iterable[str]) -> list[LiveSession]:
    """Which of the sessions, as `claimed_by` names them, are connected."""
    return sql.rows(
        connection,
        LiveSession,
        "actions.live_sessions",
        sessions=product_of(connection).array(sorted(sessions)),
    )


class _MakeReady(RowAction):
    statement = "make_ready"
    sets: tuple[str, ...] = ("status",)
    clears = ("error", "done_at", "claimed_by", "claimed_at")


class Release(_MakeReady):
    """`unknown`: also claims whose owner is unknown; `force`: all, young ones too."""

    verb = "release"
    states = ("claimed",)
    allowed = ("claimed",)
    also_reads = ("live_sessions",)

    def __init__(
        self,
        source: MessageSource,
        *,
        stuck_after_seconds: float,
        force: bool = False,
        unknown: bool = False,
    ) -> None:
        queue = source.queue
        require_verb(queue, self.verb)
        require_subscriber(queue)
        if "claimed" not in queue.states:
            raise UsageError(
                f"The queue {queue.name!r} has no claims.",
                why="A pop deletes its row: a stuck message is held by a session.",
                next_step="See which: dbq-console waits; then: dbq-console end-session",
            )
        flags = [name for name, is_set in (("force", force), ("unknown", unknown)) if is_set]
        super().__init__(source, detail=", ".join(flags), to_back="no")
        self._stuck_after_seconds = stuck_after_seconds
        self._force = force
        self._unknown = unknown
        self._alive: set[str] = set()

    grouping = Grouping.BY_CLAIMANT

    @property
    def group_limit(self) -> float:
        return self._stuck_after_seconds

    def group_of(self, message: Message) -> Group:
        age = message.age_seconds
        return Group(
            message.claimed_by,
            None if age is None else -1 if age < self._stuck_after_seconds else 1,
        )

    def groups_excluded(self, session: Session, groups: Sequence[Group]) -> Mapping[Group, str]:
        """Claims that are young, or whose owners are alive or unknown."""
        with session.transaction("read the owners of claims") as connection:
            queue = self.source.queue
            owners = [owner_of(group.label, queue) for group in groups]
            sessions = [None if owner is None else owner.session for owner in owners]
            found = claimant_evidence(connection, queue, sessions, self._stuck_after_seconds)
        left = {}
        for group, owner in zip(groups, owners, strict=True):
            evidence = found.of(owner)
            if evidence is Evidence.ALIVE and owner is not None:
                self._alive.add(owner.session)
            why = self._why_not(group.side, evidence, bound=owner is not None and owner.bound)
            if why:
                left[group] = why
        return left

    def _why_not(self, side: int | None, evidence: Evidence, *, bound: bool) -> str:
        if self._force or (evidence is Evidence.GONE and bound):
            return ""
        if evidence is Evidence.ALIVE:
            return ALIVE
        if side is None:
            return "" if self._unknown else UNDATED
        if side < 0:
            return YOUNG
        return "" if self._unknown or evidence is Evidence.GONE else UNKNOWN

    def consequences(
        self, session: Session, selected: SelectedMessages
    ) -> tuple[list[str], list[str]]:
        library = self.source.queue.design.library
        lines = [
            "they can be popped again; a consumer still working on one can no longer finish it"
        ]
        if library:
            lines = [
                f"they become ready again, {self.source.queue.design.requeued}",
                "a consumer working on one may still finish it, so that it is done twice",
            ]
        if self.source.queue.design.claims_expire:
            lines.append("none of them is stuck: each comes back automatically after its time-out")
        else:
            lines.append(f"a claim counts as stuck after {duration(self._stuck_after_seconds)}")
        lines += self._live_owners(session)
        if selected.excluded.get(UNKNOWN) or selected.excluded.get(UNDATED):
            lines.append("--unknown releases those whose owner is unknown")
        if selected.excluded.get(ALIVE):
            lines.append("--force releases those whose owner is alive: it may be working on them")
        return lines, rule_obstacles(session, self.source)

    def _live_owners(self, session: Session) -> list[str]:
        if not self._alive:
            return []
        with session.transaction("read the owners of claims") as connection:
            rows = live_sessions(connection, self._alive)
        return [warning(f"alive: {row.line}") for row in rows]


FULL = "the other queue is full"
_GOES_INTO: Mapping[str, tuple[str, ...]] = {
    "text": ("text", "json"),
    "json": ("json", "text"),
    "bytes": ("bytes",),
}
"""Payload type -> types of queues that can take it; only text that is JSON goes into json."""
_NO_LIMIT = str(2**63 - 1)


@dataclass(frozen=True)
class _PayloadCheck:
    id: str | None
    too_long: bool | None
    """None: there is no payload."""


@dataclass(frozen=True)
class _Retired:
    id: str
    why: str


class Requeue(_MakeReady):
    """To their old position; `to_back`: behind all ready ones, where the design has an order."""

    verb = "requeue"
    states = ("error",)
    allowed = ("error",)

    def __init__(self, source: MessageSource, *, to_back: bool = False) -> None:
        """UsageError where the queue has no such verb or, with `to_back`, no order."""
        queue = source.queue
        require_verb(queue, self.verb)
        require_subscriber(queue)
        ring = queue.design.flow is Flow.NUMBERS
        if to_back and queue.design.library:
            raise UsageError(
                f"Nothing can go to the back of {queue.name!r}.",
                why=f"It is requeued {queue.design.requeued}.",
            )
        if to_back and (ring or "pushed_at" not in queue.roles):
            why = "Its pops take messages in hand before those in the slots."
            if not ring:
                why = "It was adopted without a column for the role pushed_at."
            raise UsageError(f"Nothing can go to the back of {queue.name!r}.", why=why)
        super().__init__(
            source, detail="to the back" if to_back else "", to_back="yes" if to_back else "no"
        )
        self._to_back = to_back
        if to_back:
            self.sets += ("pushed_at",)
        # A library may delete a failed job, or retry it by itself.
        self.tracker = None if queue.design.library else CanaryTracker(source)

    @property
    def by_group(self) -> bool:
        return not sql.has(self.source.product, self.source.statement_name("not_requeued"))

    def excluded(self, session: Session, chosen: Sequence[Message]) -> Mapping[str, list[Message]]:
        """Jobs that a library has retired itself."""
        if self.by_group:
            return {}
        with session.transaction("find jobs that the library has retired") as connection:
            rows = sql.rows(
                connection,
                _Retired,
                self.source.statement_name("not_requeued"),
                self.source.queue.scope(self.source.product),
                keys=self.source.product.array([message.id or "" for message in chosen]),
            )
        why = {row.id: row.why for row in rows}
        left: dict[str, list[Message]] = defaultdict(list)
        for message in chosen:
            if message.id in why:
                left[why[message.id]].append(message)
        return left

    def consequences(
        self, session: Session, selected: SelectedMessages
    ) -> tuple[list[str], list[str]]:
        del selected
        queue = self.source.queue
        if queue.design.library:
            lines = [f"they become ready again, {queue.design.requeued}"]
            return lines, rule_obstacles(session, self.source)
        if queue.design.flow is Flow.NUMBERS:
            by = f" by {queue.subscriber}" if queue.subscriber else ""
            return [f"they are popped next{by}, before messages in slots"], []
        if self._to_back:
            return ["they go behind all that are ready now; their push time is set to now"], []
        return ["they return to their old position: before all that were pushed later"], []


class RequeueTo(RowAction):
    """Into another queue of the same database, as new messages through its own push.

    What that queue cannot take (over its limit, no JSON, a full ring) stays in error here.
    """

    verb = "requeue"
    states = ("error",)
    allowed = ("error",)
    statement = "push_to"

    def __init__(self, source: MessageSource, *, to: MessageSource) -> None:
        """UsageError where the other queue cannot take such messages."""
        queue, target = source.queue, to.queue
        require_verb(queue, self.verb)
        require_subscriber(queue)
        if queue.design.library:
            raise RefusedError(
                f"Messages of {queue.name!r}, which belongs to {queue.design.library_name}, "
                "cannot go to another queue.",
                why="Only the library removes its own messages.",
            )
        require_interface(target)
        if (queue.schema, queue.name) == (target.schema, target.name):
            raise UsageError(
                f"{queue.name!r} is the same queue.",
                next_step="Without --to, errors are requeued where they are.",
            )
        if to.payload not in _GOES_INTO.get(source.payload, ()):
            raise UsageError(
                f"Messages of {queue.name!r} cannot go into {target.name!r}.",
                why=f"Their payload is {source.payload or 'not known'}, that queue's {to.payload}.",
            )
        both = "status" in target.roles and "status" in queue.roles
        titled = both and queue.kind is Kind.INSTALLED
        super().__init__(
            source,
            detail=f"to {target.label}",
            target_payload=to.payload,
            titles="yes" if titled else "no",
        )
        self._to = to
        self._limit = target.options.get("max_bytes", "unlimited")
        self._too_long = f"over {target.name}'s limit of {self._limit} bytes"
        self._unfit = f"no {to.payload} payload, as {target.name} requires"

    def excluded(self, session: Session, chosen: Sequence[Message]) -> Mapping[str, list[Message]]:
        """Messages that the other queue cannot take."""
        left: dict[str, list[Message]] = defaultdict(list)
        with session.transaction("measure payloads") as connection:
            self.source.wait_for_relay(connection)
            for storage, messages in by_storage(self.source.queue, chosen):
                unfit = self._unfit_ids(connection, storage, [message.id for message in messages])
                for message in messages:
                    if message.id in unfit:
                        left[unfit[message.id]].append(message)
        return left

    def consequences(
        self, session: Session, selected: SelectedMessages
    ) -> tuple[list[str], list[str]]:
        target = self._to.queue
        with session.transaction("read the other queue") as connection:
            self._to.wait_for_relay(connection)
            now = target_state(connection, self._to)
        lines = [
            f"they go into {target.label} as new messages behind {now.count} that are ready; they "
            "leave this queue",
            "there their attempts start at 0 and their errors are dropped",
        ]
        needs, obstacles = now.needs(selected.count)
        others, kept = deleted_along(session, self.source)
        return lines + needs + others, kept + [f"{target.name} {one}" for one in obstacles]

    def forbidden(self, connection: Connection) -> Decision | None:
        to = self._to.queue
        return decisions.find_in(decisions.read(connection), "pause", to.schema, to.name)

    def stop_reason(self, ledger: Ledger) -> str:
        if FULL not in ledger.failed:
            return ""
        return f"{self._to.queue.name} is full: the rest is still in error here"

    def _scope(self, storage: Storage) -> sql.Scope:
        plain = scope(self.source, storage, **self._conditions)
        target = self._to.queue.scope(self._to.product)
        values = {
            "target_schema": target.values["schema"],
            "target": target.values["queue"],
            "target_payload_type": target.values["payload_type"],
            "target_max_bytes": _NO_LIMIT if self._limit == "unlimited" else self._limit,
        }
        return replace(plain, values={**plain.values, **values})

    def _unfit_ids(
        self, connection: Connection, storage: Storage, ids: Sequence[str | None]
    ) -> dict[str | None, str]:
        """Id -> why the other queue cannot take the message."""
        if not ids:
            return {}
        from sqlalchemy.exc import DBAPIError  # noqa: PLC0415  # a verb imports what it uses

        try:
            with connection.begin_nested():
                rows = sql.rows(
                    connection,
                    _PayloadCheck,
                    self.source.statement_name("oversized"),
                    self._scope(storage),
                    keys=self.source.product.array([id_ or "" for id_ in ids]),
                )
        except DBAPIError as error:
            translated = self.source.product.translate(error, "measure payloads")
            if isinstance(translated, (RefusedError, ConnectionFailedError)):
                raise
            if len(ids) == 1:
                return {ids[0]: self._unfit}
            half = len(ids) // 2
            return self._unfit_ids(connection, storage, ids[:half]) | self._unfit_ids(
                connection, storage, ids[half:]
            )
        why = {True: self._too_long, None: self._unfit}
        return {row.id: why[row.too_long] for row in rows if row.too_long in why}

    def script(self) -> str:
        ring = self.source.queue.design.flow is Flow.NUMBERS
        within = self._scope(Storage.IN_HAND if ring else Storage.TABLE)
        return sql.script(
            self.source.statement_name(self.statement), self.source.product.dialect, within
        )

    def _move(self, connection: Connection, held: LockedRows, action_id: int) -> Ledger:
        del action_id
        if isinstance(held.locations, str):
            raise TypeError("each message is read")
        unfit = self._unfit_ids(connection, held.storage, held.ids)
        locations = [
            location
            for location, id_ in zip(held.locations, held.ids, strict=True)
            if id_ not in unfit
        ]
        moved = Moved(0, 0)
        if locations:
            # The owner of this table may have no rights on the other queue.
            with run_others_code(connection, self.source.queue, as_owner=False):
                moved = sql.row(
                    connection,
                    Moved,
                    self.source.statement_name(self.statement),
                    self._scope(held.storage),
                    locations=self.source.product.array(locations),
                )
        failed = Counter(unfit.values())
        if stayed := len(locations) - moved.taken_out:
            failed[FULL] = stayed
        return Ledger(held.count, moved.taken_out, moved.put_in, failed=dict(failed))
