"""When the terminal's bell rings: at a critical finding that was not there before."""

from console.monitor.limits import Severity
from console.tui.context import Context
from console.tui.findings import FindingKey, QueueKey

Critical = dict[QueueKey, tuple[bool, frozenset[FindingKey]]]
"""Of each queue: whether the doctor has examined it, and its critical findings."""


def critical(context: Context, name: str) -> Critical:
    """What nobody has silenced at the connection, where the bell is wanted."""
    conn = context.connections.get(name)
    if conn is None or not conn.bell:
        return {}
    return {
        row.key: (
            row.examined is not None,
            frozenset(
                one.key
                for one in row.findings
                if one.level is Severity.CRITICAL and one.silenced is None
            ),
        )
        for row in context.store.rows(name)
    }


class Bell:
    """What was critical at the last look, so that what is new is known."""

    def __init__(self) -> None:
        self._known: Critical = {}

    def rings(self, context: Context, name: str) -> bool:
        """Whether there is something new at the connection. What a first look finds
        stands on the screen already, and so does what the doctor finds at its first."""
        new = False
        for key, (examined, findings) in critical(context, name).items():
            before = self._known.get(key)
            if before is not None and before[0] == examined:
                new = new or bool(findings - before[1])
            self._known[key] = (examined, findings)
        return new
