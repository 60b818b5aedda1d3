"""Archive: move what is finished, done or in error, out of the queue's table into its archive."""

from console.actions.plan import Plan, require_verb
from console.actions.rows import RowMover
from console.catalog import Kind
from console.engines import Session
from console.errors import RefusedError
from console.monitor.walked import Source


class Archive(RowMover):
    """Never a ready message, whatever its age."""

    verb = "archive"
    allowed = ("done", "error")
    statement = "put_away"

    def __init__(self, source: Source, *, reason: str = "") -> None:
        """RefusedError where there is no archive."""
        queue = source.queue
        require_verb(queue, self.verb)
        if queue.kind is Kind.ADOPTED:
            raise RefusedError(
                f"The queue {queue.name!r} was adopted and has no archive.",
                why="The console makes no tables beside somebody else's.",
            )
        super().__init__(source, detail=reason)
        # Where nothing is ever done, because a message's end deletes it, the errors are what stays.
        self.states = ("done",) if "done" in queue.states else ("error",)
        self._reason = f"archive: {reason}" if reason else "archive"

    def bound(self, action_id: int) -> dict[str, object]:
        """Why the archive has it, and whose doing it was."""
        return {"reason": self._reason, "action_id": action_id}

    def consequence(self, session: Session, plan: Plan) -> tuple[list[str], list[str]]:
        """Where they go."""
        del session, plan
        return [f"they go into {self.source.queue.name}_archive; restore brings them back"], []
