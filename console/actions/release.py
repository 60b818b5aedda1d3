"""Release: a claim whose owner is gone can be popped again, on evidence, and never by age alone.

Evidence is of the session that claimed. A consumer may rightly have closed it, so that it is gone
says something only of a claim that was bound to it, or that is older than the queue's threshold.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from console import sql
from console.actions.plan import Plan, require_verb
from console.actions.rows import RowMover, against_the_rule
from console.engines import Product, Session
from console.errors import UsageError
from console.formats import duration
from console.monitor.message import Message
from console.monitor.owners import Evidence, evidence_of, owner_of
from console.monitor.walked import Source

YOUNG = "younger than the threshold, and not bound to a session that is gone"
ALIVE = "their owner is alive"
UNKNOWN = "nobody can tell whether their owner is alive"


@dataclass(frozen=True)
class Living:
    """An owner that is there: who, and from where."""

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


def living(connection: Connection, product: Product, sessions: Iterable[str]) -> list[Living]:
    """Those of the sessions, as `claimed_by` names them, that are there."""
    return sql.fetch(
        connection,
        Living,
        sql.statements(product.name, "actions")["living"],
        sql.Scope(),
        sessions=product.array(sorted(sessions)),
    )


class Release(RowMover):
    """`force`: also those whose owner is alive; `unknown`: also those of whom nobody can tell."""

    verb = "release"
    states = ("claimed",)
    allowed = ("claimed",)
    statement = "make_ready"

    def __init__(
        self,
        source: Source,
        *,
        stuck_after_seconds: float,
        force: bool = False,
        unknown: bool = False,
    ) -> None:
        """UsageError where the queue has no claims."""
        queue = source.queue
        require_verb(queue, self.verb)
        if "claimed" not in queue.states:
            raise UsageError(
                f"The queue {queue.name!r} has no claims.",
                why="A pop deletes its row: what is stuck is a session that holds it.",
                next_step="See who does: dbq-console waits; then: dbq-console end-session",
            )
        words = [word for word, said in (("force", force), ("unknown", unknown)) if said]
        super().__init__(source, detail=", ".join(words), to_back="no")
        self._stuck_after_seconds = stuck_after_seconds
        self._force = force
        self._unknown = unknown or force
        self._alive: set[str] = set()

    def consider(self, session: Session, chosen: Sequence[Message]) -> Mapping[str, list[Message]]:
        """Leaves alone the young, the living and the unknown."""
        with session.transaction("look at the owners of claims") as connection:
            queue = self.source.queue
            owners = [owner_of(message.claimed_by, queue) for message in chosen]
            sessions = [None if owner is None else owner.session for owner in owners]
            told = evidence_of(connection, self.source.product, sessions, queue)
        left: dict[str, list[Message]] = defaultdict(list)
        for message, owner in zip(chosen, owners, strict=True):
            evidence = Evidence.UNKNOWN
            if owner is not None:
                evidence = told.get(owner.session, Evidence.UNKNOWN)
            if evidence is Evidence.ALIVE and owner is not None:
                self._alive.add(owner.session)
            why = self._why_not(message, evidence, bound=owner is not None and owner.bound)
            if why:
                left[why].append(message)
        return left

    def _why_not(self, message: Message, evidence: Evidence, *, bound: bool) -> str:
        old = (message.age_seconds or 0.0) >= self._stuck_after_seconds
        if evidence is Evidence.GONE:
            return "" if bound or old else YOUNG
        if evidence is Evidence.ALIVE:
            return "" if self._force else ALIVE
        if not old and not self._force:
            return YOUNG
        return "" if self._unknown else UNKNOWN

    def consequence(self, session: Session, plan: Plan) -> tuple[list[str], list[str]]:
        """What becomes of the claims, and who the living are."""
        library = self.source.queue.design.library
        lines = ["they can be popped again; whoever still works on one cannot finish it any more"]
        if library:
            lines = [
                f"they become ready again, {self.source.queue.design.requeued}",
                "whoever still works on one may end it all the same: then it was done twice",
            ]
        lines.append(f"a claim counts as stuck after {duration(self._stuck_after_seconds)}")
        lines += self._living(session)
        if plan.left_alone.get(UNKNOWN):
            lines.append("--unknown releases those of whom nobody can tell")
        if plan.left_alone.get(ALIVE):
            lines.append("--force releases those whose owner is alive: it works on them, perhaps")
        return lines, against_the_rule(session, self.source)

    def _living(self, session: Session) -> list[str]:
        """Who and where they are."""
        if not self._alive:
            return []
        with session.transaction("look at the owners of claims") as connection:
            rows = living(connection, self.source.product, self._alive)
        return [f"alive: {row.line}" for row in rows]
