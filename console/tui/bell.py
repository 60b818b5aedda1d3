"""When the terminal's bell rings: at a critical finding that was not there before."""

from console.monitor.limits import Severity
from console.tui.context import Context
from console.tui.findings import FindingKey, QueueKey

Critical = dict[QueueKey, tuple[bool, frozenset[FindingKey]]]
"""Of each queue: whether the doctor has examined it, and its critical findings."""


def critical(context: Context) -> Critical:
    """What nobody has silenced, at the connections where the bell is wanted."""
    return {
        row.key: (
            row.examined is not None,
            frozenset(
                one.key
                for one in row.findings
                if one.level is Severity.CRITICAL and one.silenced is None
            ),
        )
        for name, conn in context.connections.items()
        if conn.bell
        for row in context.store.rows(name)
    }


class Bell:
    """What was critical at the last look, so that what is new is known."""

    def __init__(self) -> None:
        self._known: Critical = {}

    def rings(self, context: Context) -> bool:
        """Whether there is something new. What a first look finds stands on the screen already,
        and so does what the doctor finds at its first."""
        new = False
        for key, (examined, findings) in critical(context).items():
            before = self._known.get(key)
            if before is not None and before[0] == examined:
                new = new or bool(findings - before[1])
            self._known[key] = (examined, findings)
        return new
