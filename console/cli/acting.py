"""Verbs on messages: requeue, release, purge, archive, restore; and the audit of all verbs."""

import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import click

from console.actions import audit as auditing
from console.actions import continuous, execute, plan
from console.actions import end_session as ending
from console.actions.archive import Archive
from console.actions.execute import BATCH, MOST_BATCH, Pace, Progress, Result
from console.actions.plan import Mover, Plan
from console.actions.purge import Purge
from console.actions.release import Release
from console.actions.requeue import Requeue, RequeueTo
from console.actions.restore import Restore
from console.catalog import Queue
from console.cli import broker
from console.cli.context import (
    DURATION,
    Call,
    ConfirmedVerb,
    Rights,
    complete_filters,
    confirmation,
    confirms,
    require_confirmation,
    stopping,
    verb_options,
)
from console.cli.streams import narrate
from console.engines import Database
from console.errors import RefusedError, UsageError
from console.formats import duration, moment, plain
from console.monitor import filters as filtering
from console.monitor.walked import Source

Verb = TypeVar("Verb", bound=Callable[..., Any])

_LINE_SECONDS = 2.0
"""Between two lines of progress, where stderr is no terminal."""


def _chosen(verb: Verb) -> Verb:
    """`--filter`, `--batch`, `--rate`, `--canary`."""
    for option in (
        click.option(
            "--canary", is_flag=True, help="First 1 message, then 10, then the rest in batches."
        ),
        click.option(
            "--rate",
            type=click.FloatRange(min=0, min_open=True),
            metavar="N",
            help="At most so many messages a second.",
        ),
        click.option(
            "--batch",
            type=click.IntRange(1, MOST_BATCH),
            default=BATCH,
            show_default=True,
            metavar="N",
            help="Messages a transaction.",
        ),
        click.option(
            "--filter",
            "words",
            multiple=True,
            metavar="F",
            shell_complete=complete_filters,
            help="Only what matches; all must, of several id= any. "
            f"{'  '.join(filtering.FORMS)}  @NAME: one that is saved",
        ),
    ):
        verb = option(verb)
    return verb


@click.command(cls=ConfirmedVerb)
@click.argument("name")
@click.option("--back", is_flag=True, help="Behind all that are ready, not to their old place.")
@click.option("--to", "other", metavar="OTHER", help="Into another queue, as new messages.")
@_chosen
@confirmation
@verb_options
def requeue(
    call: Call,
    name: str,
    back: bool,
    other: str | None,
    yes: str | None,
    dry_run: bool,
    **how: Any,
) -> None:
    """Let what failed be popped again. Attempts stay counted; all errors, without a filter.

    \b
    Examples:
      dbq-console requeue mail --filter 'error~time-out' --yes
      dbq-console requeue mail --rate 100 --canary --yes mail
      dbq-console requeue mail --to mail-slow --yes
    """
    database, source = _source(call, "requeue", name, Rights.OPERATOR)
    if source.queue.design.waits_itself:
        broker.switch_on(call, database, source.queue, yes, dry_run=dry_run)
        return
    mover: Mover
    if other is None:
        mover = Requeue(source, to_back=back)
    elif back:
        raise UsageError("--back and --to exclude each other.")
    else:
        mover = RequeueTo(source, to=_source_in(call, database, other))
    _act(call, database, mover, yes, dry_run, **how)


@click.command(cls=ConfirmedVerb)
@click.argument("name")
@click.option("--unknown", is_flag=True, help="Also where nobody can tell if the owner lives.")
@click.option("--force", is_flag=True, help="Also where the owner is alive.")
@_chosen
@confirmation
@verb_options
def release(
    call: Call,
    name: str,
    unknown: bool,
    force: bool,
    yes: str | None,
    dry_run: bool,
    **how: Any,
) -> None:
    """Let claims be popped again whose owner is gone: stuck ones, or bound to a session that ended.

    The plan says of how many the owner is alive, who that is and where. Whoever still works on a
    released claim cannot finish it any more: complete and fail say so.

    \b
    Examples:
      dbq-console release mail --yes
      dbq-console release mail --filter claimed_by=worker-7 --force --yes mail
    """
    database, source = _source(call, "release", name, Rights.OPERATOR)
    if source.queue.design.waits_itself:
        broker.end_conversations(call, database, source.queue, yes, dry_run=dry_run)
        return
    if "end-session" in source.queue.verbs:
        _show_holders(call, database, source.queue)
        return
    stuck_after = call.thresholds(name).stuck_after_seconds
    mover = Release(source, stuck_after_seconds=stuck_after, force=force, unknown=unknown)
    _act(call, database, mover, yes, dry_run, **how)


def _show_holders(call: Call, database: Database, queue: Queue) -> None:
    """What is stuck where a pop deletes: sessions that hold rows. RefusedError where there are."""
    found = ending.holding(database, queue)
    lines = [f"{ending.who(session)} holds rows of {queue.label}" for session in found]
    call.answer(
        {"queue": queue.name, "schema": queue.schema, "holders": [one.as_json() for one in found]},
        [plain(line) for line in lines] or [f"No session holds rows of {queue.label}."],
    )
    if found:
        name = shlex.quote(queue.name)
        raise RefusedError(
            f"The queue {queue.name!r} has no claims: a session holds what it popped.",
            next_step=f"End one, and its rows come back: dbq-console end-session {name} "
            f"{shlex.quote(str(found[0].key))}",
        )


@click.command(cls=ConfirmedVerb)
@click.argument("name")
@click.option("--reason", default="", metavar="TEXT", help="Stands with them in the archive.")
@click.option("--permanently", is_flag=True, help="Delete them; nothing brings them back.")
@_chosen
@confirmation
@verb_options
def purge(
    call: Call,
    name: str,
    reason: str,
    permanently: bool,
    yes: str | None,
    dry_run: bool,
    **how: Any,
) -> None:
    """Take messages out of a queue into its archive: all that are ready or in error, or a part.

    Never one that is claimed. What comes while it runs stays. restore brings all of it back.

    \b
    Examples:
      dbq-console purge mail --filter older=1d --dry-run
      dbq-console purge mail --filter older=1d --reason 'ticket 4711' --yes mail
    """
    needs = Rights.ADMIN if permanently else Rights.OPERATOR
    database, source = _source(call, "purge", name, needs)
    mover = Purge(source, reason=reason, permanently=permanently)
    _act(call, database, mover, yes, dry_run, **how)


@click.command(cls=ConfirmedVerb)
@click.argument("name")
@click.option("--older", type=DURATION, metavar="T", help="Short for --filter older=T.")
@click.option("--reason", default="", metavar="TEXT", help="Stands with them in the archive.")
@click.option("--every", type=DURATION, metavar="T", help="Again and again, until Ctrl-C.")
@click.option(
    "--hot-above",
    type=click.IntRange(min=0),
    metavar="N",
    help="With --every: wait while more than N messages are ready.",
)
@_chosen
@confirmation
@verb_options
def archive(
    call: Call,
    name: str,
    older: float | None,
    reason: str,
    every: float | None,
    hot_above: int | None,
    yes: str | None,
    dry_run: bool,
    **how: Any,
) -> None:
    """Move what is finished into the archive: done rows; errors where nothing else stays.

    Never a ready message, whatever its age. With --every it goes on round the clock.

    \b
    Examples:
      dbq-console archive jobs --older 1h --yes
      dbq-console archive jobs --older 1h --every 5s --hot-above 10000 --yes
    """
    database, source = _source(call, "archive", name, Rights.OPERATOR)
    mover = Archive(source, reason=reason)
    if older is not None:
        how["words"] = (*how["words"], *filtering.Filters(older=older).words)
    if every is None:
        _act(call, database, mover, yes, dry_run, **how)
        return
    wanted = filtering.parse(call.filter_words(how.pop("words")))
    made = plan.make(database, mover, wanted)
    if not _confirmed(call, made, yes, dry_run):
        return
    with stopping() as control:
        continuous.rounds(
            database,
            mover,
            wanted,
            every_seconds=every,
            hot_above=hot_above,
            pace=Pace(**how),
            control=control,
            told=_Rounds(call).told,
        )


class _Rounds:
    """Narrates rounds: each that did something, and why nothing is done when that changes."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._waits = ""

    def told(self, one: continuous.Round) -> None:
        if one.result is not None:
            done = one.result
            self._call.answer({"result": done.as_json()}, [f"archived {done.ledger.out:,}"])
        elif one.waits != self._waits:
            narrate(one.waits)
        self._waits = one.waits


@click.command(cls=ConfirmedVerb)
@click.argument("name")
@click.option("--action", type=int, metavar="N", help="What this action took: see audit.")
@click.option("--reason", metavar="TEXT", help="Whose reason in the archive holds the text.")
@click.option("--popped", is_flag=True, help="What consumers popped (archive_at_pop).")
@_chosen
@confirmation
@verb_options
def restore(
    call: Call,
    name: str,
    action: int | None,
    reason: str | None,
    popped: bool,
    yes: str | None,
    dry_run: bool,
    **how: Any,
) -> None:
    """Bring messages back out of the archive: all that the last purge took, or those that match.

    In the state in which they went; a claimed one as error. They keep their ids where the design
    keeps ids and these are free. A design that deletes at pop gets them as pushes, at the end.

    \b
    Examples:
      dbq-console restore mail --yes mail
      dbq-console restore mail --action 17 --filter 'error~time-out' --yes
    """
    database, source = _source(call, "restore", name, Rights.OPERATOR)
    mover = Restore(source, action=action, reason=reason, popped=popped)
    _act(call, database, mover, yes, dry_run, **how)


def _source(call: Call, verb: str, name: str, needs: Rights) -> tuple[Database, Source]:
    database = call.database(needs, verb)
    return database, _source_in(call, database, name)


def _source_in(call: Call, database: Database, name: str) -> Source:
    queue = call.find(database, name)
    with database.transaction(f"look at the queue {name!r}", read_only=True) as connection:
        return Source.of(connection, database.product, queue)


def _act(
    call: Call,
    database: Database,
    mover: Mover,
    yes: str | None,
    dry_run: bool,
    *,
    words: Sequence[str],
    **pace: Any,
) -> None:
    """Plan; with a confirmation also do it, with progress on stderr."""
    wanted = filtering.parse(call.filter_words(words))
    made = plan.make(database, mover, wanted, progress=_Counting().told)
    if not _confirmed(call, made, yes, dry_run):
        return
    if not call.json:
        narrate("\n".join(made.lines()))
    result = _execute(call, database, mover, made, Pace(**pace))
    call.answer(_answer(made, result), result.lines())
    if result.outcome is auditing.Outcome.STOPPED:
        raise KeyboardInterrupt


def _answer(made: Plan, result: Result | None = None) -> dict[str, object]:
    where = {"queue": made.queue.name, "schema": made.queue.schema}
    answer = {**where, "plan": made.as_json(), "done": result is not None}
    return answer if result is None else {**answer, "result": result.as_json()}


def _confirmed(call: Call, made: Plan, yes: str | None, dry_run: bool) -> bool:
    """Whether to go on. Where not, the plan is the answer; RefusedError for anything but a dry run.

    Where there is nothing to do any confirmation is as good as another.
    """
    name, by_name = made.queue.name, made.wants_queue_name and made.count > 0
    if dry_run or not confirms(yes, name, by_name=by_name):
        call.answer(_answer(made), made.lines())
    if dry_run:
        return False
    try:
        plan.require_possible(made)
        require_confirmation(yes, name, by_name=by_name)
    except RefusedError as error:
        auditing.note(made.subject, auditing.Outcome.REFUSED, detail=error.what)
        raise
    return True


def _execute(call: Call, database: Database, mover: Mover, made: Plan, pace: Pace) -> Result:
    with stopping() as control, _progress(call, made) as progress:
        return execute.execute(database, mover, made, pace=pace, control=control, progress=progress)


@contextmanager
def _progress(call: Call, made: Plan) -> Iterator[Callable[[Progress], None]]:
    """A bar on a terminal; elsewhere a line now and then."""
    if call.json or sys.stderr is None or not sys.stderr.isatty():
        yield _Lines(made).told
        return
    from rich import console, markup, progress  # noqa: PLC0415  # verbs shall start at once

    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=console.Console(stderr=True)) as bar:
        words = markup.escape(plain(f"{made.verb} {made.queue.name}"))
        task = bar.add_task(words, total=made.count)
        yield lambda now: bar.update(task, completed=now.ledger.selected)


class _Counting:
    """A word now and then while a plan is made: counting a million takes its time."""

    def __init__(self) -> None:
        self._next = time.monotonic() + _LINE_SECONDS

    def told(self, counted: int) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _LINE_SECONDS
            narrate(f"{counted:,} counted")


class _Lines:
    def __init__(self, made: Plan) -> None:
        self._made = made
        self._began = self._next = time.monotonic() + _LINE_SECONDS

    def told(self, now: Progress) -> None:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _LINE_SECONDS
        narrate(f"{now.ledger.selected:,} of {self._made.count:,}, {now.batches:,} batches")


@click.command()
@click.argument("name", required=False)
@click.option("--verb", metavar="V", help="Only this verb.")
@click.option("--operator", metavar="WHO", help="Only of this operator: a part of user@host.")
@click.option("--since", type=DURATION, metavar="T", help="Only what began so long ago, or later.")
@click.option("--running", is_flag=True, help="Only what has not ended.")
@click.option(
    "--limit",
    type=click.IntRange(1, auditing.LIST_MOST),
    default=50,
    show_default=True,
    metavar="N",
    help="At most so many, the newest.",
)
@verb_options
def audit(
    call: Call,
    name: str | None,
    verb: str | None,
    operator: str | None,
    since: float | None,
    running: bool,
    limit: int,
) -> None:
    """What operators did, the newest first: who, when, what, how many. Never a payload.

    An action that runs in a session which is gone was cut off: what it had done is counted.

    \b
    Examples:
      dbq-console audit orders --since 1d
      dbq-console audit --verb purge --json
    """
    database = call.database(Rights.READ_ONLY, "audit")
    wanted = auditing.Wanted(call.schema, name, verb, operator, since, running)
    with database.transaction("read the audit", read_only=True) as connection:
        found = auditing.entries(connection, database.product, wanted, limit)
        alive = auditing.alive(connection, database.product, found)
    shown = [{**entry.as_json(), "alive": alive.get(entry.action_id)} for entry in found]
    lines = [_line(call, entry, alive.get(entry.action_id)) for entry in found]
    call.answer({"actions": shown}, lines or ["No actions."])


def _line(call: Call, entry: auditing.Entry, alive: bool | None) -> str:
    outcome = entry.outcome
    if outcome == auditing.Outcome.RUNNING.value and alive is False:
        outcome = "interrupted"
    took = duration((entry.last_at - entry.started_at).total_seconds())
    counts = f"{entry.done:,} of {entry.planned:,}" if entry.planned else f"{entry.done:,}"
    if entry.skipped or entry.failed:
        counts += f", {entry.skipped:,} skipped, {entry.failed:,} failed"
    started = moment(entry.started_at, call.zone)
    parts = (
        f"{entry.action_id:>6}  {started}  {entry.verb} {entry.schema}.{entry.queue}: {outcome}",
        counts if entry.planned or entry.done else "",
        f"in {took}",
        f"by {entry.operator} as {entry.database_user}",
        entry.filters,
        entry.detail,
    )
    return "  ".join(plain(part) for part in parts if part)


COMMANDS = (requeue, release, purge, archive, restore, audit)
