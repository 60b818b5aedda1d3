"""Why a queue is not as usual, what happened to it, and the handover of a shift.

`recorded` reads recordings, audit and catalog, `events` makes one list in order of time of them,
`usual` finds when a figure left its usual band, `causes` puts both together. Nothing here samples
a database: of it only the audit and the catalog are read.
"""

from console.features import CommandKey, Feature

FEATURE = Feature(
    needs=("history",),
    keys=(
        CommandKey("Y", "why", "why the queue is not as usual"),
        CommandKey("e", "timeline", "what happened to the queue, in order of time"),
        CommandKey("H", "handover", "the handover of the last hours, of all queues"),
    ),
)
