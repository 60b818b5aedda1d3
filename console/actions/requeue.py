"""Requeue: what failed can be popped again. Its attempts stay counted, its error is forgotten."""

from console.actions.plan import Plan, require_verb
from console.actions.rows import RowMover
from console.designs import Flow
from console.engines import Session
from console.errors import UsageError
from console.monitor.walked import Source


class Requeue(RowMover):
    """To its old place, or behind all that are ready (`to_back`), where the design has an order."""

    verb = "requeue"
    states = ("error",)
    allowed = ("error",)
    statement = "make_ready"

    def __init__(self, source: Source, *, to_back: bool = False) -> None:
        """UsageError where the queue has no such verb, or no back to go to."""
        queue = source.queue
        require_verb(queue, self.verb)
        ring = queue.design.flow is Flow.NUMBERS
        if to_back and (ring or "pushed_at" not in queue.roles):
            why = "Its pops take what was in hand before all that lies in the slots."
            if not ring:
                why = "It was adopted without a column for the role pushed_at."
            raise UsageError(f"Nothing goes to the back of {queue.name!r}.", why=why)
        super().__init__(
            source, detail="to the back" if to_back else "", to_back="yes" if to_back else "no"
        )
        self._to_back = to_back

    def consequence(self, session: Session, plan: Plan) -> tuple[list[str], list[str]]:
        """Where in the order they come."""
        del session, plan
        queue = self.source.queue
        if queue.design.flow is Flow.NUMBERS:
            return ["they are popped next, before what lies in the slots"], []
        if self._to_back:
            return ["they go behind all that are ready now; their push time becomes now"], []
        return ["they go back to their old place: before all that were pushed later"], []
