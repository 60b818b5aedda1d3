"""Planned verbs as commands: plan, confirmation, progress, result."""

import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import click

from console import audit as auditing
from console import catalog
from console.actions import end_session as ending
from console.actions.execute import Control
from console.audit import Outcome
from console.catalog import Kind, Queue, every_queue
from console.cli.context import (
    BARE_YES,
    Call,
    as_command,
    call_of,
    call_options,
    complete_queues,
    confirms,
    require_confirmation,
)
from console.cli.streams import LINE_SECONDS, ThrottledLines, narrate, signals_handled
from console.engines import Database
from console.errors import ConnectionFailedError, ConsoleError, RefusedError, UsageError
from console.formats import numbered, plain
from console.verbs.verb import Plan, Progress, Target, Verb


def planned_command(verb: Verb) -> click.Command:
    """The command of a verb that needs nothing but its plan."""

    @call_options
    def run(context: click.Context, /, name: str | None, **given: Any) -> None:
        _run(call_of(context, given), verb, name, given)

    optional = verb.queue_last or verb.for_all
    name = click.Argument(["name"], required=not optional, shell_complete=complete_queues)
    command = as_command(verb, run, name)
    if verb.for_all:
        all_queues = click.Option(["--all", "all_queues"], is_flag=True, help="Every queue.")
        command.params.insert(1, all_queues)
    return command


def _run(call: Call, verb: Verb, name: str | None, given: dict[str, Any]) -> None:
    """Plan; once confirmed, run the plan with progress on stderr."""
    if verb.for_all and given.pop("all_queues") != (name is None):
        raise UsageError(f"{verb.name} takes the name of a queue, or --all.")
    if verb.for_all and name is None:
        _run_on_all(call, verb, given)
        return
    yes, dry_run = given.pop("yes", BARE_YES), given.pop("dry_run", False)
    database = call.database(verb.right(given), verb.name)
    any_design = verb.queue_last or verb.name == "forget"
    queue = (
        every_queue()
        if name is None
        else catalog.look_up(database, name, call.schema, any_design=any_design)
    )
    if verb.name == "release" and not ("claimed" in queue.states or queue.design.waits_itself):
        _show_holders(call, database, queue)
        return
    plan = verb.plan(target_of(call, database, queue, given.get("filter", ())), given)
    if verb.confirmed:
        if not _confirmed(call, plan, yes, dry_run=dry_run):
            return
        if not call.json and not plan.rounds:
            narrate("\n".join(plan.lines))
    stops = _stopping() if plan.stoppable else nullcontext(Control())
    with stops as control, _progress(call, plan) as progress:
        result = plan.run(control, progress)
    if plan.rounds:
        return  # each round was printed
    answer = {**_plan_json(plan), "done": result.done, "result": result.data}
    call.answer(answer, result.lines)
    if result.outcome is Outcome.STOPPED and control.stopped:
        raise KeyboardInterrupt
    ended_early = result.outcome is Outcome.STOPPED and plan.stoppable
    if result.stopped_by_canary or result.outcome is Outcome.FAILED or ended_early:
        sys.exit(RefusedError.exit_status)


def target_of(call: Call, database: Database, queue: Queue, filters: Sequence[str] = ()) -> Target:
    """`filters`: the words of `--filter`."""
    counting = ThrottledLines()  # counting a million takes a while
    return Target(
        database,
        queue,
        call.rights,
        call.thresholds,
        call.masks,
        call.saved_filters(filters),
        lambda count: counting.show(f"{count:,} counted"),
        narrate,
    )


def _run_on_all(call: Call, verb: Verb, given: dict[str, Any]) -> None:
    """On every queue that is not adopted: one that cannot be done stops none of the others."""
    yes, dry_run = given.pop("yes"), given.pop("dry_run")
    database = call.database(verb.right(given), verb.name)
    done: list[dict[str, object]] = []
    lines: list[str] = []
    problems: list[str] = []
    needed = False
    for queue in call.queues(database):
        if queue.kind is Kind.ADOPTED:
            continue
        try:
            plan = verb.plan(target_of(call, database, queue, given.get("filter", ())), given)
            done.append({**_plan_json(plan), "done": 0})
            lines += plan.lines
            needed = needed or plan.needed
            if yes is not None and not dry_run and plan.needed:
                result = plan.run(Control(), lambda _: None)
                done[-1] |= {"done": result.done, "result": result.data}
                lines += result.lines
        except ConnectionFailedError:
            raise
        except ConsoleError as error:
            problems.append(f"{queue.label}: {error}")
            lines.append(problems[-1])
    if yes is None or dry_run:
        call.planned({"queues": done}, lines)
        if needed and not dry_run:
            require_confirmation(None, "", requires_name=False)
    else:
        call.answer({"queues": done, "problems": problems}, lines)
    if problems:
        raise RefusedError(
            f"{numbered(len(problems), 'queue')} could not be done: {'; '.join(problems)}"
        )


def _plan_json(plan: Plan) -> dict[str, object]:
    queue = plan.queue
    where = {"queue": queue.name, "schema": queue.schema, "design": queue.design.name}
    return {**where, "plan": plan.data}


def _confirmed(call: Call, plan: Plan, yes: str | None, *, dry_run: bool) -> bool:
    """Whether to continue. If not, the plan is the result; RefusedError unless it is a dry run.

    A plan with nothing to do needs no confirmation and accepts any.
    """
    name, requires_name = plan.queue.name, plan.requires_name and plan.needed
    if dry_run or not confirms(yes, name, requires_name=requires_name):
        call.planned(_plan_json(plan), plan.lines)
    if dry_run or (yes is None and not plan.needed):
        return False
    if yes is None or not plan.needs_consent:
        plan.require_possible()
    try:
        require_confirmation(yes, name, requires_name=requires_name)
    except RefusedError as error:
        auditing.log_locally(plan.subject, Outcome.REFUSED, detail=error.what)
        raise
    plan.require_possible()
    return True


def _show_holders(call: Call, database: Database, queue: Queue) -> None:
    """The sessions that hold rows of a queue without claims. RefusedError if there are any."""
    found = ending.sessions_holding(database, queue)
    lines = [ending.describe_holder(session, queue) for session in found]
    call.planned(
        {"queue": queue.name, "schema": queue.schema, "holders": [one.as_json() for one in found]},
        [plain(line) for line in lines] or [f"No session holds rows of {queue.label}."],
    )
    if found:
        name = shlex.quote(queue.name)
        raise RefusedError(
            f"The queue {queue.name!r} has no claims: sessions hold the rows they popped.",
            next_step=f"Terminate one to get its rows back: dbq-console end-session {name} "
            f"{shlex.quote(str(found[0].key))}",
        )


@contextmanager
def _stopping() -> Iterator[Control]:
    """The first Ctrl-C (or SIGTERM) stops after the current batch; the next one interrupts it."""
    control = Control()

    def stop(_: int) -> None:
        control.stop()
        after_echo = "\n" if sys.stderr is not None and sys.stderr.isatty() else ""  # of "^C"
        narrate(f"{after_echo}Stopping after this batch; Ctrl-C again interrupts it.")

    with signals_handled(stop, once=True):
        yield control


@contextmanager
def _progress(call: Call, plan: Plan) -> Iterator[Callable[[Progress], None]]:
    """A bar on a terminal, else a line every few seconds."""
    if call.json or plan.count is None or sys.stderr is None or not sys.stderr.isatty():
        yield _Lines(call, plan).show
        return
    from rich import console, markup, progress  # noqa: PLC0415  # slow to import

    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=console.Console(stderr=True)) as bar:
        words = markup.escape(plain(f"{plan.verb} {plan.queue.name}"))
        task = bar.add_task(words, total=plan.count)
        yield lambda now: bar.update(task, completed=now.done)


class _Lines:
    """Each round of a verb that works in rounds; else its progress every few seconds."""

    def __init__(self, call: Call, plan: Plan) -> None:
        self._call = call
        self._plan = plan
        self._next = time.monotonic() + LINE_SECONDS
        self._words = ""

    def show(self, now: Progress) -> None:
        if now.round is not None and now.round.ledger is not None:
            done = now.round.ledger.out
            self._call.answer({"result": now.round.data}, [f"{self._plan.verb}d {done:,}"])
        elif self._plan.rounds or (now.total is not None and now.ledger is None):
            if now.text != self._words:
                narrate(now.text)
            self._words = now.text
        elif now.total is not None and time.monotonic() >= self._next:
            self._next = time.monotonic() + LINE_SECONDS
            narrate(f"{now.done:,} of {now.total:,}, {now.text}")
