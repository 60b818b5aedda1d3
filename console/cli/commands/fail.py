"""Turn claimed messages into errors by id, for an operator to requeue.

Does what the consumer that popped them would do, in one transaction. Exit 1: one of them was
not claimed, or no longer by that claim; the others are errors now.

\b
Examples:
  dbq-console fail mail 4711 --error 'no such mailbox'
  dbq-console fail mail 4711 --error 'no such mailbox' --attempts 2 --json
"""

from collections.abc import Sequence
from dataclasses import replace

from console.actions import pop as popping
from console.cli.command import NAME
from console.cli.commands.complete import finish
from console.cli.context import Call
from console.verbs.push_pop import FAIL


def _run(
    call: Call,
    name: str,
    ids: Sequence[str],
    error: str,
    subscriber: str | None,
    attempts: int | None,
) -> None:
    finish(call, name, ids, subscriber, attempts, popping.Finish.FAIL, error)


COMMAND = replace(FAIL, run=_run, help=__doc__, parameters=(NAME, *FAIL.parameters))
