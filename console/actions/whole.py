"""Verbs on a queue as a whole, as works: its ring, tables, code, sessions and conversations."""

from dataclasses import replace

from console.actions import adopt as adopting
from console.actions import broker, relay
from console.actions import end_session as ending
from console.actions import maintain as maintaining
from console.actions import uninstall as uninstalling
from console.actions import upgrade as upgrading
from console.actions.audit import Outcome
from console.actions.execute import Control
from console.actions.ledger import Ledger
from console.actions.work import Asked, Counted, Ended, Planned, Site, Tell, Told, whole
from console.catalog import Queue
from console.errors import UsageError


def switched_on(site: Site) -> Planned:
    found = broker.plan_switch(site.database, site.queue)

    def do(control: Control, tell: Tell) -> Ended:
        del control, tell
        broker.switch_on(site.database, site.queue)
        return Ended(Outcome.DONE, (f"{site.queue.label} is switched on",))

    return replace(
        whole(site, "requeue", found.lines(), do, by_name=found.wants_queue_name),
        needed=found.needed,
    )


def conversations(site: Site, asked: Asked) -> Planned:
    found = broker.plan_conversations(site.database, site.queue)

    def do(control: Control, tell: Tell) -> Ended:
        done = broker.end_conversations(
            site.database,
            found,
            batch=asked.pace.batch,
            control=control,
            progress=lambda ended: tell(Told(ended, found.conversations)),
        )
        outcome = Outcome.STOPPED if control.stopped else Outcome.DONE
        return Ended(outcome, (f"{site.queue.label}: {done.out:,} conversations ended",), done)

    return replace(
        whole(site, "release", found.lines(), do, by_name=found.wants_queue_name),
        needed=found.conversations > 0,
        count=found.conversations,
    )


def relaid(site: Site, asked: Asked, progress: Counted) -> Planned:
    del progress
    size = asked.number("size")
    if asked.verb == "resize" and size is None:
        raise UsageError("resize wants the new number of slots.")
    found = relay.plan(site.database, site.queue, size)

    def do(control: Control, tell: Tell) -> Ended:
        del control
        tell(Told(0, None, "waiting for its callers to let the ring go"))
        return _relay_ended(site.queue, relay.relay(site.database, site.queue, size))

    lines = found.lines()
    production = ["  PRODUCTION database"] if site.production else []
    obstacles = [f"Drain {found.too_many:,} messages first."] if found.too_many else []
    return replace(
        whole(site, asked.verb, [*lines, *production], do, by_name=True),
        count=found.measure.live,
        obstacles=tuple(obstacles),
    )


def _relay_ended(queue: Queue, done: relay.Relaid) -> Ended:
    ledger = Ledger(selected=done.live, out=done.live, into=done.live)
    lines = (
        f"relaid {queue.label}: {done.size_before:,} slots before, {done.size_after:,} now",
        f"  {done.live:,} live messages, numbers {done.base:,} to {done.next_push - 1:,}",
    )
    return Ended(Outcome.DONE, lines, ledger)


def maintained(site: Site, asked: Asked, progress: Counted) -> Planned:
    del asked, progress
    found = maintaining.plan(site.database, site.queue)

    def do(control: Control, tell: Tell) -> Ended:
        begun = 0

        def told(one: maintaining.Done) -> None:
            nonlocal begun
            begun += 1
            tell(Told(begun, len(found.steps), f"{one.step.what} {one.step.target}"))

        done = maintaining.maintain(site.database, found, control=control, progress=told)
        return Ended(done.outcome, tuple(done.lines()), action_id=done.action_id)

    return replace(
        whole(site, "maintain", found.lines(), do),
        needed=found.needed,
        count=len(found.steps),
        sql="\n\n".join(step.sql for step in found.steps),
    )


def upgraded(site: Site, asked: Asked, progress: Counted) -> Planned:
    del asked, progress
    found = upgrading.plan(site.database, site.queue)

    def do(control: Control, tell: Tell) -> Ended:
        del control, tell
        done = upgrading.upgrade(site.database, site.queue)
        word = f"upgraded {site.queue.label}" if done.needed else done.lines()[0]
        return Ended(Outcome.DONE, (word,))

    return replace(
        whole(site, "upgrade", found.lines(), do),
        needed=found.needed,
        count=len(found.differences),
    )


def uninstalled(site: Site, asked: Asked, progress: Counted) -> Planned:
    del progress
    keep, with_messages = asked.flag("keep-archive"), asked.flag("with-messages")
    found = uninstalling.plan(site.database, site.queue, keep_archive=keep)

    def do(control: Control, tell: Tell) -> Ended:
        del control, tell
        done = uninstalling.uninstall(
            site.database, site.queue, keep_archive=keep, with_messages=with_messages
        )
        words = f"uninstalled {site.queue.label}; {done.lost:,} messages went with it"
        return Ended(Outcome.DONE, (words,))

    obstacles = []
    if found.wants_with_messages and not with_messages:
        obstacles = [f"{found.lost:,} messages would be gone for good: say so (with messages)."]
    lines = [*found.lines(), *(f"  REFUSED: {why}" for why in obstacles)]
    return replace(
        whole(site, "uninstall", lines, do, by_name=True),
        count=found.lost,
        obstacles=tuple(obstacles),
    )


def forgotten(site: Site, asked: Asked, progress: Counted) -> Planned:
    del asked, progress

    def do(control: Control, tell: Tell) -> Ended:
        del control, tell
        adopting.forget(site.database, site.queue)
        return Ended(Outcome.DONE, (f"forgot {site.queue.label}; its table is untouched",))

    lines = [
        f"forget {site.queue.label} (design {site.queue.design.name})",
        "  it leaves the catalog and this console; its table and messages stay as they are",
    ]
    return whole(site, "forget", lines, do)


def session_ended(site: Site, asked: Asked, progress: Counted) -> Planned:
    del progress
    name = asked.text("session")
    if not name:
        _tell_holders(site)
    found = ending.plan(site.database, site.queue, name)

    def do(control: Control, tell: Tell) -> Ended:
        del control
        tell(Told(0, None, "waiting until it is gone"))
        done = ending.end_session(site.database, found)
        outcome = Outcome.STOPPED if done.changed_meanwhile else Outcome.DONE
        return Ended(outcome, tuple(done.lines()), action_id=done.action_id)

    return whole(site, "end-session", found.lines(), do)


def _tell_holders(site: Site) -> None:
    """UsageError: which sessions there are to choose from."""
    holders = ending.holding(site.database, site.queue)
    raise UsageError(
        "end-session wants the session that is meant.",
        why="; ".join(map(ending.who, holders)) or "No session holds rows of the queue now.",
    )
