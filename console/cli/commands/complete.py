"""Complete claimed messages by id.

Does what the consumer that popped them would do, in one transaction. Exit 1: one of them was
not claimed, or no longer by that claim; the others are completed.

\b
Examples:
  dbq-console complete mail 4711 4712
  dbq-console complete jobs 6f1f2a30-3c1e-4f0e-9f43-0c8d7a5b1e52 --attempts 1
"""

import sys
from collections.abc import Sequence
from dataclasses import replace

from console.actions import pop as popping
from console.cli.command import NAME
from console.cli.context import Call
from console.cli.streams import narrate
from console.formats import numbered
from console.verbs.push_pop import COMPLETE

_DID = {popping.Finish.COMPLETE: "completed", popping.Finish.FAIL: "failed"}


def _run(
    call: Call, name: str, ids: Sequence[str], subscriber: str | None, attempts: int | None
) -> None:
    finish(call, name, ids, subscriber, attempts, popping.Finish.COMPLETE)


def finish(
    call: Call,
    name: str,
    ids: Sequence[str],
    subscriber: str | None,
    attempts: int | None,
    how: popping.Finish,
    error: str = "",
) -> None:
    database = call.database()
    queue = call.find(database, name, subscriber=subscriber)
    claims = popping.claims(database, queue, ids, attempts)
    acted = popping.finish_claims(database, queue, claims, how, error)
    left = [claim.id for claim, was in zip(claims, acted, strict=True) if not was]
    call.answer(
        {
            "queue": queue.name,
            "schema": queue.schema,
            "done": sum(acted),
            "messages": [
                {"id": claim.id, "acted": was} for claim, was in zip(claims, acted, strict=True)
            ],
        },
        [f"{_DID[how]} {sum(acted):,} of {numbered(len(claims), 'message')}"],
    )
    if left:
        by_that = "" if attempts is None else f" with attempts {attempts}"
        narrate(f"No longer claimed{by_that}, left unchanged: {', '.join(left)}.")
        sys.exit(1)


_PARAMETERS = (NAME, *COMPLETE.parameters)
COMMAND = replace(COMPLETE, run=_run, help=__doc__, parameters=_PARAMETERS)
