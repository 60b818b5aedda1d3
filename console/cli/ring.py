"""Verbs of the ring: resize, relay."""

from dataclasses import asdict

import click

from console.actions import relay as relaying
from console.cli.context import (
    Call,
    ConfirmedVerb,
    Rights,
    confirm_by_name,
    confirmation,
    verb_options,
)
from console.designs import design
from console.errors import RefusedError

_SIZE = design("ring").option("size")


@click.command(cls=ConfirmedVerb)
@click.argument("name")
@click.argument("size", type=click.IntRange(_SIZE.minimum, _SIZE.maximum))
@confirmation
@verb_options
def resize(call: Call, name: str, size: int, yes: str | None, dry_run: bool) -> None:
    """Give a ring SIZE slots. Live messages keep their order; callers wait while it runs.

    \b
    Examples:
      dbq-console resize orders 50000 --dry-run
      dbq-console resize orders 50000 --yes orders
    """
    _relay(call, name, size, yes, dry_run)


@click.command(cls=ConfirmedVerb)
@click.argument("name")
@confirmation
@verb_options
def relay(call: Call, name: str, yes: str | None, dry_run: bool) -> None:
    """Number a ring's live messages anew: brings back what was stranded by lost numbers.

    \b
    Examples:
      dbq-console relay orders --dry-run
      dbq-console relay orders --yes orders
    """
    _relay(call, name, None, yes, dry_run)


def _relay(call: Call, name: str, size: int | None, yes: str | None, dry_run: bool) -> None:
    database = call.database(Rights.ADMIN, "resize" if size else "relay")
    queue = call.find(database, name)
    plan = relaying.plan(database, queue, size)
    where = {"queue": queue.name, "schema": queue.schema}
    if dry_run or yes != name:
        figures = {
            **asdict(plan.measure),
            "new_size": plan.new_size,
            "drain_first": plan.too_many,
            "blockers": [asdict(blocker) for blocker in plan.blockers],
        }
        call.answer({**where, "plan": figures, "done": False}, plan.lines())
    if plan.too_many and not dry_run:
        raise RefusedError(
            f"The ring {name!r} holds {plan.measure.live:,} live messages, "
            f"{plan.too_many:,} more than {plan.new_size:,} slots take.",
            next_step=f"Drain {plan.too_many:,} first, or choose {plan.measure.live:,} or more.",
        )
    if not confirm_by_name(yes, dry_run, name):
        return
    done = relaying.relay(database, queue, size)
    call.answer(
        {**where, "done": True, **asdict(done)},
        [
            f"relaid {queue.label}: {done.size_before:,} slots before, {done.size_after:,} now",
            f"  {done.live:,} live messages, numbers {done.base:,} to {done.next_push - 1:,}",
        ],
    )


COMMANDS = (resize, relay)
