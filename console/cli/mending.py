"""Verbs on a queue's tables, code and sessions: maintain, upgrade, end-session."""

import sys
from collections.abc import Sequence

import click

from console.actions import end_session as ending
from console.actions import maintain as maintaining
from console.actions import upgrade as upgrading
from console.actions.audit import Outcome
from console.cli.context import (
    Call,
    ConfirmedVerb,
    Rights,
    confirmation,
    stopping,
    verb_options,
)
from console.cli.streams import narrate
from console.engines import Database
from console.errors import RefusedError


@click.command(cls=ConfirmedVerb)
@click.argument("name")
@confirmation
@verb_options
def maintain(call: Call, name: str, yes: str | None, dry_run: bool) -> None:
    """Vacuum, reindex or reorganize what measured bloat or fragmentation calls for, and say why.

    No message moves and callers go on. Steps run one by one; Ctrl-C ends it between two.

    \b
    Examples:
      dbq-console maintain mail --dry-run
      dbq-console maintain mail --yes
    """
    database = call.database(Rights.OPERATOR, "maintain")
    planned = maintaining.plan(database, call.find(database, name))
    plan = planned.as_json()
    confirmed = _confirmed(call, database, yes, dry_run, plan, planned.lines())
    if not confirmed:
        return
    with stopping() as control:
        done = maintaining.maintain(
            database,
            planned,
            control=control,
            progress=lambda one: narrate(f"{one.step.what} {one.step.target}"),
        )
    call.acted(plan, done.as_json(), done.lines())
    if done.outcome is Outcome.STOPPED:
        raise KeyboardInterrupt
    if done.outcome is Outcome.FAILED:
        sys.exit(RefusedError.exit_status)


@click.command(cls=ConfirmedVerb)
@click.argument("name")
@confirmation
@verb_options
def upgrade(call: Call, name: str, yes: str | None, dry_run: bool) -> None:
    """Make a queue's functions, columns and rights those of this console's version.

    The plan names what differs, code that somebody changed by hand too. One transaction; messages
    are not touched and callers go on.

    \b
    Examples:
      dbq-console upgrade mail --dry-run
      dbq-console upgrade mail --yes
    """
    database = call.database(Rights.ADMIN, "upgrade")
    queue = call.find(database, name)
    planned = upgrading.plan(database, queue)
    plan = planned.as_json()
    if _confirmed(call, database, yes, dry_run, plan, planned.lines()):
        done = upgrading.upgrade(database, queue)
        lines = [f"upgraded {queue.label}" if done.needed else done.lines()[0]]
        call.acted(plan, done.as_json(), lines)


@click.command(cls=ConfirmedVerb, name="end-session")
@click.argument("name")
@click.argument("session")
@confirmation
@verb_options
def end_session(call: Call, name: str, session: str, yes: str | None, dry_run: bool) -> None:
    """End a SESSION that holds rows of a queue, by its id, or a prepared transaction by its name.

    The plan says who it is, what it holds and who waits for it. What it did in its transaction is
    undone, so its rows come back. It is left alone if it is in another transaction by then.

    \b
    Examples:
      dbq-console end-session mail 4711 --dry-run
      dbq-console end-session mail 4711 --yes
    """
    database = call.database(Rights.OPERATOR, "end-session")
    planned = ending.plan(database, call.find(database, name), session)
    plan = planned.as_json()
    if _confirmed(call, database, yes, dry_run, plan, planned.lines()):
        done = ending.end_session(database, planned)
        call.acted(plan, done.as_json(), done.lines())


def _confirmed(
    call: Call,
    database: Database,
    yes: str | None,
    dry_run: bool,
    plan: dict[str, object],
    lines: Sequence[str],
) -> bool:
    """Whether to go on: a bare --yes will do, but for a production database."""
    production = call.production(database)
    more = ["  PRODUCTION database"] if production else []
    return call.confirmed(plan, [*lines, *more], yes, dry_run=dry_run, by_name=production)


COMMANDS = (maintain, upgrade, end_session)
