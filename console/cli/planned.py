"""Planned verbs as commands: plan, confirmation, progress, result."""

import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import click

from console import catalog
from console.catalog import Kind, Queue, every_queue
from console.catalog import audit as auditing
from console.catalog.audit import Outcome, Subject
from console.cli.command import BARE_YES, NAME, OPTIONAL_NAME, as_command
from console.cli.context import ON_ONLY_PLANNED, Call
from console.cli.streams import (
    LINE_SECONDS,
    Stopped,
    ThrottledLines,
    narrate,
    on_terminal,
    signals_handled,
)
from console.engines import Database
from console.errors import ConnectionFailedError, ConsoleError, RefusedError, UsageError
from console.formats import numbered, plain
from console.plan import Confirmation, Control, Plan, Progress, Result, single_step
from console.verbs.parameters import Parameter, Placement
from console.verbs.verb import Target, Verb

T = TypeVar("T")


def planned_command(verb: Verb) -> click.Command:
    """The command of a verb that needs nothing but its plan."""

    def run(call: Call, /, name: str | None, **given: Any) -> None:
        _run(call, verb, name, given)

    before = [parameter for parameter in verb.parameters if parameter.placement is Placement.BEFORE]
    after = [parameter for parameter in verb.parameters if parameter not in before]
    name = OPTIONAL_NAME if verb.queue_last or verb.for_all else NAME
    every = [_EVERY] if verb.for_all else []
    return as_command(replace(verb, run=run, parameters=(*before, name, *every, *after)))


_EVERY = Parameter("all", "Every queue.", is_flag=True, dest="all_queues")


def _run(call: Call, verb: Verb, name: str | None, given: dict[str, Any]) -> None:
    if verb.for_all and given.pop("all_queues") != (name is None):
        raise UsageError(f"{verb.name} takes the name of a queue, or --all.")
    if verb.for_all and name is None:
        _run_on_all(call, verb, given)
        return
    yes, dry_run = given.pop("yes", BARE_YES), given.pop("dry_run", False)
    database = call.database()
    queue = (
        every_queue()
        if name is None
        else catalog.look_up(database, name, call.schema, any_design=verb.any_design)
    )
    if (instead := verb.instead(database, queue)) is not None:
        call.planned(instead.data, [plain(line) for line in instead.lines])
        if instead.refusal is not None:
            raise instead.refusal
        return
    plan = verb.plan(target_of(call, database, queue, given.get("filter", ())), given)
    carry_out(call, plan, yes, dry_run=dry_run, confirm=verb.confirmed)


def carry_out(
    call: Call, plan: Plan, yes: str | None, *, dry_run: bool, confirm: bool = True
) -> None:
    """Once it is confirmed, run it with progress on stderr, and print its result."""
    if confirm:
        if not confirmed(call, plan, yes, dry_run=dry_run):
            return
        if not call.json and not plan.rounds:
            narrate("\n".join(plan.lines))
    stops = _stopping() if plan.stoppable else nullcontext(_Signalled())
    with stops as control, _progress(call, plan) as progress:
        result = plan.run(control, progress)
    if plan.rounds:
        return  # each round was printed
    answer = {**plan.as_json(), "done": result.done, "result": result.data}
    call.answer(answer, result.lines)
    if result.outcome is Outcome.STOPPED and control.stopped:
        raise control.interrupt
    ended_early = result.outcome is Outcome.STOPPED and plan.stoppable
    if result.stopped_by_canary or result.outcome is Outcome.FAILED or ended_early:
        sys.exit(RefusedError.exit_status)


def confirmed(
    call: Call,
    plan: Plan,
    yes: str | None,
    *,
    dry_run: bool,
    value: Mapping[str, object] | None = None,
) -> bool:
    """Whether to continue. If not, the plan is the result; RefusedError unless it is a dry run.

    A plan with nothing to do needs none, and a bare `--yes` will do. `value`: the JSON of the plan,
    where it is not its own."""
    required = plan.confirmation
    named = bool(required.name) and yes == required.name
    accepted = named or (yes == BARE_YES and not required.requires_name)
    if dry_run or not accepted:
        call.planned(plan.as_json() if value is None else value, plan.lines)
    if dry_run or (yes is None and not plan.needed):
        return False
    if yes is None or not plan.consent:
        plan.require_possible()
    if not accepted:
        error = _not_confirmed(required, yes, plan.consent if plan.obstacles else "")
        if yes is None and (only_planned := click.get_current_context().meta.get(ON_ONLY_PLANNED)):
            only_planned()
        auditing.log_locally(plan.subject, Outcome.REFUSED, detail=error.what)
        raise error
    plan.require_possible()
    return True


def _not_confirmed(required: Confirmation, yes: str | None, consent: str = "") -> RefusedError:
    """What to type, `consent` too. A name that begins with "-" would be read as an option."""
    if yes is None and not required.requires_name:
        what, how = "this was only the plan", "To run it, confirm with: --yes"
        return RefusedError(f"Nothing was changed: {what}.", next_step=how)
    what, how = f"{yes!r} is not {required.label}", "Confirm"
    if yes is None:
        what, how = "this was only the plan", "To run it, confirm"
    elif yes == BARE_YES:
        what = f"this needs {required.label} as confirmation"
    name = required.name
    quoted = f"--yes{'=' if name.startswith('-') else ' '}{shlex.quote(name)}"
    words = " ".join(filter(None, (consent, quoted)))
    return RefusedError(f"Nothing was changed: {what}.", next_step=f"{how} with: {words}")


def show_count() -> Callable[[int], None]:
    """Shows how many are counted so far, once a second to who waits; a file gets none of it."""
    if not on_terminal():
        return lambda _: None
    lines = ThrottledLines(1.0)
    return lambda count: lines.show(f"{count:,} counted")


def target_of(call: Call, database: Database, queue: Queue, filters: Sequence[str] = ()) -> Target:
    """`filters`: the words of `--filter`."""
    return Target(
        database,
        queue,
        call.rights,
        call.thresholds,
        call.masks,
        call.saved_filters(filters),
        show_count(),
        narrate,
    )


def _run_on_all(call: Call, verb: Verb, given: dict[str, Any]) -> None:
    yes, dry_run = given.pop("yes"), given.pop("dry_run")
    database = call.database()
    every = _EveryQueue()
    for queue in call.queues(database):
        if queue.kind is not Kind.ADOPTED:
            target = target_of(call, database, queue, given.get("filter", ()))
            every.add(queue, partial(verb.plan, target, given))
    plan = every.plan(
        Subject.of(database, every_queue(), verb.name),
        ("connection", database.label),
        production=call.production(database),
    )
    if confirmed(call, plan, yes, dry_run=dry_run, value=plan.data):
        result = plan.run_to_end()
        call.answer(result.data, result.lines)
    if every.problems:
        raise RefusedError(
            f"{numbered(len(every.problems), 'queue')} could not be done: "
            f"{'; '.join(every.problems)}"
        )


class _EveryQueue:
    """The plans of a verb for several queues: one that fails stops none of the others."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self._plans: list[Plan] = []
        self._lines: list[str] = []

    def add(self, queue: Queue, make: Callable[[], Plan]) -> None:
        """Raises ConnectionFailedError."""
        if (plan := self._tried(queue, make)) is not None:
            self._plans.append(plan)
            self._lines += plan.lines

    def plan(self, subject: Subject, about: tuple[str, str], *, production: bool) -> Plan:
        return Plan(
            subject,
            every_queue(),
            tuple(self._lines),
            requires_name=production,
            about=about,
            run=single_step(self._run),
            needed=any(plan.needed for plan in self._plans),
            data={"queues": [{**plan.as_json(), "done": 0} for plan in self._plans]},
        )

    def _run(self) -> Result:
        done: list[dict[str, object]] = []
        for plan in self._plans:
            result = self._tried(plan.queue, plan.run_to_end) if plan.needed else None
            done.append({**plan.as_json(), "done": 0 if result is None else result.done})
            if result is not None:
                done[-1]["result"] = result.data
                self._lines += result.lines
        data = {"queues": done, "problems": self.problems}
        return Result(Outcome.DONE, tuple(self._lines), data=data)

    def _tried(self, queue: Queue, work: Callable[[], T]) -> T | None:
        try:
            return work()
        except ConnectionFailedError:
            raise
        except ConsoleError as error:
            self.problems.append(f"{queue.label}: {error}")
            self._lines.append(self.problems[-1])
            return None


class _Signalled(Control):
    interrupt = KeyboardInterrupt()
    """What the signal that stopped it does elsewhere: each has its own exit status."""


@contextmanager
def _stopping() -> Iterator[_Signalled]:
    """The first Ctrl-C (or SIGTERM) stops after the current batch; the next one interrupts it."""
    control = _Signalled()

    def stop(number: int) -> None:
        if number != signal.SIGINT:
            control.interrupt = Stopped(number)
        control.stop()
        after_echo = "\n" if sys.stderr is not None and sys.stderr.isatty() else ""  # of "^C"
        narrate(f"{after_echo}Stopping after this batch; Ctrl-C again interrupts it.")

    with signals_handled(stop, once=True):
        yield control


@contextmanager
def _progress(call: Call, plan: Plan) -> Iterator[Callable[[Progress], None]]:
    """A bar on a terminal, else a line every few seconds."""
    if call.json or plan.count is None or not on_terminal():
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
        if now.round is not None:
            done = now.round.ledger.out
            self._call.answer({"result": now.round.data}, [f"{self._plan.verb}d {done:,}"])
        elif self._plan.rounds or (now.total is not None and now.ledger is None):
            if now.text != self._words:
                narrate(now.text)
            self._words = now.text
        elif now.total is not None and time.monotonic() >= self._next:
            self._next = time.monotonic() + LINE_SECONDS
            narrate(f"{now.done:,} of {now.total:,}, {now.text}")
