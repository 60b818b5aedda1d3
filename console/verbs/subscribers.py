"""Verbs on a ring's subscribers: subscribe, unsubscribe, skip."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import click

from console.actions import short_locks
from console.actions import subscribe as subscribing
from console.actions.relay import blocked_by, blockers_of
from console.catalog.audit import Outcome
from console.formats import numbered
from console.plan import FOR_CALLERS, Plan, Result, waiting_step
from console.verbs.command import Params, admin
from console.verbs.parameters import Parameter, argument
from console.verbs.verb import Target, Verb

_WAITS = (
    "  its callers wait for a moment; it begins once none of them has an open transaction",
    short_locks.LINE,
)


def _plan_subscribe(target: Target, values: Params) -> Plan:
    queue, name, since = target.queue, values["subscriber"], values["from"]
    subscribing.require_subscribers(queue)
    subscribing.new_subscriber(queue, name)
    begins = "what is pushed from now on" if since == "now" else "the oldest message that it holds"
    others = ", ".join(subscriber.name for subscriber in queue.subscribers)
    lines = (
        f"subscribe {name} to {queue.label}, in addition to {others}",
        f"  it gets {begins}, and everything after that",
        "  from then on a slot is free only once it has popped it too: without a consumer the ring "
        "fills up",
    )
    data = {"subscriber": name, "from": since}
    return _planned(target, "subscribe", lines, partial(_subscribe, target, name, since), data)


def _subscribe(target: Target, name: str, since: str) -> Result:
    first = subscribing.subscribe(target.database, target.queue, name, since)
    line = f"subscribed {name} to {target.queue.label}: its first number is {first:,}"
    return Result(Outcome.DONE, (line,), done=1, data={"subscriber": name, "first": first})


def _plan_unsubscribe(target: Target, values: Params) -> Plan:
    queue, name = target.queue, values["subscriber"]
    owed, _ = subscribing.owed(target.database, queue.of(name))
    left = [subscriber.name for subscriber in queue.subscribers if subscriber.name != name]
    lines = [
        f"unsubscribe {name} from {queue.label}",
        f"  {numbered(owed.owed, 'message')} that it has not popped are dropped, not archived",
    ]
    if queue.finishes:
        lines.insert(2, f"  {numbered(owed.in_hand, 'message')} that it has in hand are dropped")
    obstacles = () if left else ("It is the last one, and a ring with subscribers must have one.",)
    run = partial(_unsubscribe, target, name)
    return _planned(
        target,
        "unsubscribe",
        lines,
        run,
        {"subscriber": name, "owed": owed.owed, "in_hand": owed.in_hand},
        count=owed.owed,
        obstacles=obstacles,
        next_step="Subscribe another one first, or uninstall the queue.",
    )


def _unsubscribe(target: Target, name: str) -> Result:
    owed = subscribing.unsubscribe(target.database, target.queue, name)
    lines = [
        f"unsubscribed {name} from {target.queue.label}",
        f"  {numbered(owed.owed, 'message')} it had not popped, {owed.in_hand:,} in hand: dropped",
    ]
    data = {"subscriber": name, "owed": owed.owed, "in_hand": owed.in_hand}
    return Result(Outcome.DONE, tuple(lines), done=1, data=data)


def _plan_skip(target: Target, values: Params) -> Plan:
    queue, name, to = target.queue, values["subscriber"], values["to"]
    owed, number = subscribing.owed(target.database, queue.of(name), to)
    lines = (
        f"skip what {name} has not popped of {queue.label}, up to number {number:,} ({to})",
        f"  {numbered(owed.below, 'message')} of {owed.owed:,} as things stand, which it will "
        "never pop",
        "  each goes into the archive; the other subscribers pop them as before",
    )
    run = partial(_skip, target, name, to)
    data = {"subscriber": name, "number": number, "skipped": owed.below, "owed": owed.owed}
    return _planned(target, "skip", lines, run, data, count=owed.below)


def _skip(target: Target, name: str, to: str) -> Result:
    done = subscribing.skip(target.database, target.queue, name, to)
    line = (
        f"{name} skipped {numbered(done.skipped, 'message')} of {target.queue.label}; "
        f"{done.archived:,} are in the archive"
    )
    data = {"subscriber": name, **asdict(done)}
    return Result(Outcome.DONE, (line,), done.ledger, done=done.skipped, data=data)


def _planned(
    target: Target,
    verb: str,
    lines: Sequence[str],
    do: Callable[[], Result],
    data: Mapping[str, object],
    **more: Any,
) -> Plan:
    run = waiting_step(FOR_CALLERS, do)
    blockers = blockers_of(target.database, target.queue)
    lines = [*lines, *_WAITS, *blocked_by(blockers)]
    data = {
        "queue": target.queue.name,
        "schema": target.queue.schema,
        **data,
        "blockers": [asdict(blocker) for blocker in blockers],
    }
    return target.planned(verb, lines, run, requires_name=True, stoppable=False, data=data, **more)


_SUBSCRIBER = argument("subscriber", "Its name.")

SUBSCRIBE = Verb(
    "subscribe",
    make_plan=_plan_subscribe,
    help="""Add a subscriber to a ring that has some: it gets every message once, as the others do.

    It begins at a number that is proven to be past every push in flight, or at the oldest message
    that the ring still holds.

    \b
    Examples:
      dbq-console subscribe events audit --dry-run
      dbq-console subscribe events audit --from oldest --yes events
    """,
    parameters=(
        _SUBSCRIBER,
        Parameter(
            "from",
            "Where it begins: now, or the oldest message there is.",
            click.Choice(subscribing.FROM),
            default="now",
        ),
    ),
    right=admin,
)

UNSUBSCRIBE = Verb(
    "unsubscribe",
    make_plan=_plan_unsubscribe,
    help="""Remove a subscriber of a ring: nothing waits for it any more.

    What it has not popped is counted and dropped; to keep it in the archive, skip first.

    \b
    Examples:
      dbq-console unsubscribe events audit --dry-run
      dbq-console unsubscribe events audit --yes events
    """,
    parameters=(_SUBSCRIBER,),
    right=admin,
)

SKIP = Verb(
    "skip",
    make_plan=_plan_skip,
    help="""\
    Skip what a subscriber of a ring has not popped: it is archived, and its slots become free.

    For one that has lost its consumers and fills the ring. The others pop the same messages as
    before.

    \b
    Examples:
      dbq-console skip events audit --to older=1h --dry-run
      dbq-console skip events audit --to now --yes events
    """,
    parameters=(
        _SUBSCRIBER,
        Parameter(
            "to", "Up to where: now, a message number, or older=1h.", required=True, metavar="WHERE"
        ),
    ),
    right=admin,
)
