"""Verbs that move messages, as works: release, requeue, purge, archive, restore."""

from collections.abc import Callable
from dataclasses import replace

from console.actions import (
    archive,
    continuous,
    execute,
    plan,
    purge,
    release,
    requeue,
    restore,
)
from console.actions.audit import Outcome
from console.actions.execute import Control, Progress
from console.actions.ledger import Ledger
from console.actions.plan import Mover, Plan
from console.actions.whole import conversations, switched_on
from console.actions.work import Asked, Counted, Ended, Planned, Site, Tell, Told
from console.catalog import Queue
from console.errors import UsageError
from console.formats import duration, parse_duration
from console.monitor import filters as filtering
from console.monitor.walked import Source


def _moving(made: Callable[[Site, Asked], Mover]) -> Callable[[Site, Asked, Counted], Planned]:
    """Verbs that move messages, as plan and execute know them."""

    def work(site: Site, asked: Asked, progress: Counted) -> Planned:
        mover = made(site, asked)
        found = plan.make(site.database, mover, filtering.parse(_words(asked)), progress=progress)

        def do(control: Control, tell: Tell) -> Ended:
            done = execute.execute(
                site.database,
                mover,
                found,
                pace=asked.pace,
                control=control,
                progress=lambda now: tell(_told(now)),
            )
            return Ended(done.outcome, tuple(done.lines()), done.ledger, done.action_id)

        return of_plan(found, do)

    return work


def of_plan(found: Plan, do: Callable[[Control, Tell], Ended]) -> Planned:
    """A plan for messages as any other."""
    return Planned(
        found.subject,
        found.queue,
        tuple(found.lines()),
        found.wants_queue_name,
        do,
        needed=found.count > 0,
        count=found.count,
        sql=found.sql,
        sample=found.sample,
        obstacles=found.obstacles,
    )


def _told(now: Progress) -> Told:
    words = f"{now.batches:,} batches"
    return Told(now.ledger.selected, now.planned, words, now.ledger)


def _words(asked: Asked) -> tuple[str, ...]:
    """The filters; `--older` is one too."""
    older = asked.text("older")
    return (
        (*asked.words, *filtering.Filters(older=parse_duration(older)).words)
        if older
        else asked.words
    )


def _source(site: Site, queue: Queue | None = None) -> Source:
    wanted = site.queue if queue is None else queue
    doing = f"look at the queue {wanted.name!r}"
    with site.database.transaction(doing, read_only=True) as connection:
        return Source.of(connection, site.database.product, wanted)


def _requeue(site: Site, asked: Asked) -> Mover:
    other, back = asked.text("to"), asked.flag("back")
    if not other:
        return requeue.Requeue(_source(site), to_back=back)
    if back:
        raise UsageError("--back and --to exclude each other.")
    return requeue.RequeueTo(_source(site), to=_source(site, site.find(other)))


def _release(site: Site, asked: Asked) -> Mover:
    return release.Release(
        _source(site),
        stuck_after_seconds=site.thresholds_of(site.queue.name).stuck_after_seconds,
        force=asked.flag("force"),
        unknown=asked.flag("unknown"),
    )


def _purge(site: Site, asked: Asked) -> Mover:
    permanently = asked.flag("permanently")
    return purge.Purge(_source(site), reason=asked.text("reason"), permanently=permanently)


def _archive(site: Site, asked: Asked) -> Mover:
    return archive.Archive(_source(site), reason=asked.text("reason"))


def _restore(site: Site, asked: Asked) -> Mover:
    return restore.Restore(
        _source(site),
        action=asked.number("action"),
        reason=asked.text("reason") or None,
        popped=asked.flag("popped"),
    )


def requeued(site: Site, asked: Asked, progress: Counted) -> Planned:
    """Service Broker keeps its queues itself: there it switches one on again."""
    if site.queue.design.waits_itself:
        return switched_on(site)
    return _moving(_requeue)(site, asked, progress)


def released(site: Site, asked: Asked, progress: Counted) -> Planned:
    """Of Service Broker, conversations that are over."""
    if site.queue.design.waits_itself:
        return conversations(site, asked)
    return _moving(_release)(site, asked, progress)


def archived(site: Site, asked: Asked, progress: Counted) -> Planned:
    """Once, or round after round with `every`."""
    once = _moving(_archive)(site, asked, progress)
    every = asked.text("every")
    if not every:
        return once
    mover, filters = _archive(site, asked), filtering.parse(_words(asked))

    def do(control: Control, tell: Tell) -> Ended:
        total = Ledger()

        def told(one: continuous.Round) -> None:
            nonlocal total
            if one.result is not None:
                total += one.result.ledger
            tell(Told(total.out, None, one.waits or "archiving", total))

        continuous.rounds(
            site.database,
            mover,
            filters,
            every_seconds=parse_duration(every),
            hot_above=asked.number("hot-above"),
            pace=asked.pace,
            control=control,
            told=told,
        )
        return Ended(Outcome.STOPPED, (f"archived {total.out:,} until it was stopped",), total)

    lines = (*once.lines, f"  again every {duration(parse_duration(every))}, until it is stopped")
    return replace(once, lines=lines, do=do, needed=True, count=None)


purged = _moving(_purge)
restored = _moving(_restore)
