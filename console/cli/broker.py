"""What requeue and release are for Service Broker, which keeps queues and conversations itself."""

from console.actions import broker
from console.catalog import Queue
from console.cli.context import Call, stopping
from console.engines import Database


def switch_on(
    call: Call, database: Database, queue: Queue, yes: str | None, *, dry_run: bool
) -> None:
    """requeue: a queue that poison messages switched off is switched on again."""
    planned = broker.plan_switch(database, queue)
    plan, by_name = planned.as_json(), planned.wants_queue_name
    if call.confirmed(plan, planned.lines(), yes, dry_run=dry_run, by_name=by_name):
        done = broker.switch_on(database, queue)
        words = "is switched on" if done.needed else "was on already"
        call.acted(plan, done.as_json(), [f"{queue.label} {words}"])


def end_conversations(
    call: Call, database: Database, queue: Queue, yes: str | None, *, dry_run: bool
) -> None:
    """release: conversations that are over and hold nothing are ended."""
    planned = broker.plan_conversations(database, queue)
    plan, by_name = planned.as_json(), planned.wants_queue_name
    if call.confirmed(plan, planned.lines(), yes, dry_run=dry_run, by_name=by_name):
        with stopping() as control:
            done = broker.end_conversations(database, planned, control=control)
        call.acted(plan, {"ended": done.out}, [f"{queue.label}: {done.out:,} conversations ended"])
        if control.stopped:
            raise KeyboardInterrupt
