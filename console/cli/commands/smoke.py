"""Test a queue's design on a scratch queue with its options, checking every message.

The queue itself is not touched. --live does use it, if it is drained: each message is pushed
and popped in one transaction, so that no consumer sees it. Exit 1: a guarantee of the design
is broken.

\b
Examples:
  dbq-console smoke orders
  dbq-console smoke orders --live
  dbq-console smoke --design ring
"""

import sys
from dataclasses import replace

from console.cli.command import OPTIONAL_NAME
from console.cli.context import Call
from console.designs import design as find_design
from console.errors import UsageError
from console.formats import numbered
from console.verbs.queues import SMOKE


def _run(call: Call, /, name: str | None, design: str | None, *, live: bool) -> None:
    from console.actions import smoke as smoking  # noqa: PLC0415  # a verb imports what it uses
    from console.actions.smoke_live import smoke_live  # noqa: PLC0415

    if (name is None) == (design is None):
        raise UsageError("smoke needs the name of a queue, or --design D.")
    if live and name is None:
        raise UsageError("--live goes with the name of a queue.")
    database = call.database()
    if design is not None:
        of = find_design(design, database.product.name)
        result = smoking.smoke_design(database, call.schema_for(database), of)
    else:
        queue = call.find(database, name or "")
        test = smoke_live if live else smoking.smoke_queue
        result = test(database, queue)
    push, pop = result.push_ms, result.pop_ms
    each = f", each to {', '.join(result.subscribers)}" if result.subscribers else ""
    lines = [
        f"{'ok' if result.ok else 'NOT OK'}: {result.design}, "
        f"{numbered(result.messages, 'message')}{each}, "
        f"order {result.order}",
        f"  lost {result.lost}, duplicated {result.doubled}, damaged {result.damaged}, "
        f"out of order {result.out_of_order}, claims lost {result.unfinished}",
        f"  push ms  p50 {push.p50:.2f}  p95 {push.p95:.2f}  p99 {push.p99:.2f}",
        f"  pop  ms  p50 {pop.p50:.2f}  p95 {pop.p95:.2f}  p99 {pop.p99:.2f}",
        *(f"  error: {error}" for error in result.errors),
    ]
    found = {name: value for name, value in vars(result).items() if not name.endswith("_ms")}
    took = {"push_seconds": push.seconds, "pop_seconds": pop.seconds}
    call.answer({**found, **took, "ok": result.ok}, lines)
    if not result.ok:
        sys.exit(1)


_PARAMETERS = (OPTIONAL_NAME, *SMOKE.parameters)
COMMAND = replace(SMOKE, run=_run, help=__doc__, parameters=_PARAMETERS)
