"""Findings and notifications: doctor, report, notify."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from threading import Thread
from typing import Any

import click

from console import audit, decisions
from console.catalog import Queue
from console.cli.context import (
    Call,
    ConfirmedVerb,
    confirmation,
    queue_name,
    queue_names,
    verb_options,
)
from console.cli.planned import confirmed, target_of
from console.cli.several import over_connections
from console.cli.streams import narrate
from console.config import Profile
from console.config.receivers import targets
from console.doctor.finding import Diagnosis, countdown
from console.engines import THIS_MACHINE, TRANSPORT, Database
from console.errors import UsageError
from console.formats import plain
from console.notify.sending import NotSentError
from console.notify.targets import Source, Target, example_events
from console.rights import Rights
from console.verbs.parameters import DURATION
from console.verbs.verb import Plan
from console.views.doctor import VIEW
from console.views.view import Display
from console.views.view import Source as ListSource


@click.command()
@click.argument("action", type=click.Choice(["test"]))
@verb_options
def notify(call: Call, action: str) -> None:
    """Send each receiver of notifications a test, and show its response.

    The receivers of the connection given, else all configured ones. The test is a finding that
    begins and ends at once; no database is used. Exit 0: all accepted it; 1: one refused it;
    3: one could not be reached.

    \b
    Examples:
      dbq-console notify test
      dbq-console notify test --profile orders --json
    """
    del action
    profile = call.profile
    receivers = targets(call.configuration, profile)
    if not receivers:
        raise _no_receiver(profile)
    tests = [_Test(one, _test_source(profile)) for one in receivers]
    for one in tests:
        one.start()
    for one in tests:
        one.join()
    note = _missing_right(profile)
    call.answer(
        {"receivers": [one.as_json() for one in tests], "note": note or None},
        [*(one.line for one in tests), *([note] if note else [])],
    )
    if status := max(one.status for one in tests):
        raise click.exceptions.Exit(status)


class _Test(Thread):
    """The test of one receiver; a thread, so that none waits for another."""

    def __init__(self, target: Target, source: Source) -> None:
        super().__init__(name=f"test {target.name}", daemon=True)
        self._target = target
        self._source = source
        self._response = ""
        self._error: NotSentError | None = None

    def run(self) -> None:
        key = (self._source.connection, self._target.name)
        events = example_events(key, datetime.now(UTC))
        try:
            for _, response in self._target.send(self._source, events):
                self._response = self._response or response
        except NotSentError as error:
            self._error = error

    @property
    def status(self) -> int:
        """Its part of the exit status."""
        if self._error is None:
            return 0
        return 1 if self._error.reached else 3

    def as_json(self) -> dict[str, object]:
        """The stable object of `notify test --json`."""
        return {
            "name": self._target.name,
            "to": self._target.receiver.shown,
            "template": self._target.template,
            "sent": self._error is None,
            "response": self._response if self._error is None else str(self._error),
        }

    @property
    def line(self) -> str:
        result = f"sent: {self._response}" if self._error is None else f"not sent: {self._error}"
        return f"{self._target.name} ({self._target.receiver.shown}): {result}"


def _test_source(profile: Profile | None) -> Source:
    if profile is None:
        return Source("test")
    return Source(profile.label, profile.group, production=profile.production)


def _missing_right(profile: Profile | None) -> str:
    """Why a recorder of the connection would send nothing, or ""."""
    if profile is None or profile.rights >= Rights.OPERATOR:
        return ""
    return (
        f"{profile.label}: its recorder sends nothing: the connection is read-only, and the lease "
        'requires rights = "operator"'
    )


def _no_receiver(profile: Profile | None) -> UsageError:
    where = "" if profile is None else f" for {profile.label}"
    return UsageError(
        f"No receiver of notifications is configured{where}.",
        next_step="Add a table [notifications.NAME] to the configuration: dbq-console help "
        "notifications",
    )


_ACTIONS = 10

idle_for = click.option(
    "--idle-for",
    type=DURATION,
    default=30.0,
    metavar="T",
    help="Consumers count as stopped when nothing is popped for this long while messages wait. "
    "If a first sample shows no consumption, waits this long, once for all queues; 0s: never.  "
    "[default: 30s]",
)


class _WithCodes(ConfirmedVerb):
    """Adds all codes to --help."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """All codes, most severe first."""
        del ctx
        from console.doctor.checks import CODES  # noqa: PLC0415

        with formatter.section("Findings"):
            formatter.write_dl(
                [(code.name, f"{code.severity.word}: {code.meaning}") for code in CODES]
            )


@click.command(cls=_WithCodes)
@queue_names
@click.option("--fix", is_flag=True, help="Run the repairs that need no judgement. One NAME.")
@click.option(
    "--code",
    multiple=True,
    metavar="CODE",
    help="With --fix: repair only these findings, even if they need your judgement.",
)
@click.option(
    "--subscriber",
    metavar="NAME",
    help="With --fix: repair only the findings of this subscriber of a ring.",
)
@click.option(
    "--codes",
    "all_codes",
    is_flag=True,
    help="Print every possible finding with its repair; needs no connection.",
)
@idle_for
@confirmation
@verb_options
@over_connections("fix", "all_codes")
def doctor(  # noqa: PLR0913, PLR0917  # the options of the command line, by name
    call: Call,
    names: Sequence[str],
    fix: bool,
    code: Sequence[str],
    subscriber: str | None,
    all_codes: bool,
    idle_for: float,
    yes: str | None,
    dry_run: bool,
) -> None:
    """Prove what is wrong with queues, most severe first, and show the repairs.

    Each finding has its evidence, cause, consequence, and the command that repairs it or why it
    needs your judgement. "All clear" means that everything was examined. --fix with --yes NAME runs
    the repairs that need no judgement and no lock that stops traffic; each is proven again
    first, counted and audited. If one fails it is reported on stderr, and the others continue.

    Findings silenced by `silence` or `ack` are shown last, with who and why, and count as notes.

    Exit 0: all clear, or notes only, or --dry-run; 1: a finding, or something that could not be
    examined.

    \b
    Examples:
      dbq-console doctor
      dbq-console doctor orders --fix --yes orders
      dbq-console doctor --codes
    """
    limited = bool(code or subscriber)
    _require_together(
        names, fix=fix, limited=limited, all_codes=all_codes, yes=yes, dry_run=dry_run
    )
    if all_codes:
        _describe_codes(call)
        return
    database = call.database(Rights.OPERATOR if fix else Rights.READ_ONLY, "doctor --fix")
    queues = [call.find(database, name, any_design=True) for name in names] or call.queues(database)
    examine = _examination(call, database, queues, idle_for)
    found = examine()
    repaired = 0
    if fix:
        from console.actions.execute import Control  # noqa: PLC0415
        from console.doctor.verbs import plan_repairs  # noqa: PLC0415

        (before,) = found
        target = target_of(call, database, before.queue)
        plan = plan_repairs(target, before, {"code": code, "subscriber": subscriber})
        if not _repairs_confirmed(call, before, plan, yes, dry_run=dry_run):
            if not dry_run:
                _end(found)
            return
        result = plan.run(Control(), lambda now: narrate(now.text))
        repaired = result.done
        for line in result.lines:
            narrate(line)
        if plan.needed:
            found = examine()
    answer = {**VIEW.as_json(found)}
    answer |= {"done": repaired} if fix else {}
    answer["transport"] = protection = database.capabilities.facts.get(TRANSPORT, THIS_MACHINE)
    call.answer(answer, [*_lines(call, found), *_protection_lines(protection)])
    _end(found)


def _require_together(
    names: Sequence[str],
    *,
    fix: bool,
    limited: bool,
    all_codes: bool,
    yes: str | None,
    dry_run: bool,
) -> None:
    if all_codes and (names or fix or limited or yes is not None):
        raise UsageError("--codes takes no NAME and no other option.")
    if fix and len(names) != 1:
        raise UsageError("--fix needs the name of one queue.")
    if (yes is not None or dry_run) and not fix:
        raise UsageError("--yes and --dry-run go with --fix.")
    if limited and not fix:
        raise UsageError("--code and --subscriber go with --fix.")


def _describe_codes(call: Call) -> None:
    from console.doctor.checks import CODES  # noqa: PLC0415

    call.answer(
        {"codes": [code.as_json() for code in CODES]},
        [line for code in CODES for line in code.lines],
    )


def _examination(
    call: Call, database: Database, queues: Sequence[Queue], idle_for_seconds: float
) -> Callable[[], Sequence[Diagnosis]]:
    """A function that examines the queues, and remembers the pops seen by its earlier calls."""
    from console.doctor.context import with_connection_options  # noqa: PLC0415
    from console.doctor.silent_consumers import ConsumerHistory  # noqa: PLC0415
    from console.doctor.stopped_consumers import ConsumptionHistory  # noqa: PLC0415
    from console.doctor.traffic import TrafficForecasts  # noqa: PLC0415
    from console.monitor.consumers import recorded  # noqa: PLC0415
    from console.monitor.recording.recorder import folder  # noqa: PLC0415

    def recall(queue: Queue) -> Sequence[Mapping[str, Any]]:
        now = datetime.now(UTC)
        return recorded(folder(), database.label, queue.schema, queue.name, now)

    profile = call.command_line.profile
    options = call.connection_words or (("--profile", profile) if profile else ())
    remembered = {
        "queues": queues,
        "consumption": ConsumptionHistory(idle_for_seconds or 30.0, waits=idle_for_seconds > 0),
        "consumers": ConsumerHistory(database, recall),
        "forecasts": TrafficForecasts(database.label),
    }

    def examine() -> Sequence[Diagnosis]:
        with with_connection_options(*options), ExitStack() as shown:
            on_known = None if call.json else partial(_show_known, call, shown)
            values = {**remembered, "on_known": on_known}
            source = ListSource(
                lambda: database, values=values, masks=call.masks, thresholds_of=call.thresholds
            )
            return VIEW.read(source)

    return examine


def _show_known(call: Call, shown: ExitStack, found: Sequence[Diagnosis], seconds: float) -> None:
    """On stderr what is known while the consumption is not, and when that is asked again: on a
    terminal counted down, and replaced by the result."""
    of = [f"{call.connection_words[-1]}:"] if call.of_several else []
    known, due = [*of, *_lines(call, found)], time.monotonic() + seconds

    def lines() -> list[str]:
        return [*known, countdown(due - time.monotonic())]

    from rich import console, live, text  # noqa: PLC0415  # slow to import

    terminal = console.Console(stderr=True)
    if call.of_several or not (terminal.file.isatty() and terminal.is_interactive):
        narrate("\n".join(lines()))
        return
    display = live.Live(
        get_renderable=lambda: text.Text("\n".join(lines())),
        console=terminal,
        refresh_per_second=2,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )

    def end(kind: type[BaseException] | None, *_: object) -> None:
        display.transient = kind is None  # what was known stays after Ctrl-C
        display.stop()

    display.start(refresh=True)
    shown.push(end)


def _repairs_confirmed(
    call: Call, diagnosis: Diagnosis, plan: Plan, yes: str | None, *, dry_run: bool
) -> bool:
    repairs = [f"  {plain(line)}" for line in plan.lines]
    shown = replace(plan, lines=(*_lines(call, [diagnosis]), "", "Repairs:", *repairs))
    value = {"queues": [diagnosis.as_json()], "plan": plan.data["repairs"]}
    return confirmed(call, shown, yes, dry_run=dry_run, value=value)


def _protection_lines(protection: str) -> list[str]:
    return [] if protection == THIS_MACHINE else [f"connection: {protection}"]


def _end(found: Sequence[Diagnosis]) -> None:
    sys.exit(0 if all(one.healthy for one in found) else 1)


def _lines(call: Call, found: Sequence[Diagnosis]) -> list[str]:
    return [*VIEW.lines(found, Display(call.zone, datetime.now(UTC)))]


@click.command()
@queue_name
@idle_for
@verb_options
def report(call: Call, name: str, idle_for: float) -> None:
    """Print a queue's figures, findings and last actions as Markdown, for a ticket. No payloads.

    \b
    Examples:
      dbq-console report orders > ticket.md
      dbq-console report orders --json
    """
    from console.doctor.report import markdown  # noqa: PLC0415

    database = call.database(Rights.READ_ONLY, "report")
    queue = call.find(database, name, any_design=True)
    (diagnosis,) = _examination(call, database, [queue], idle_for)()
    figures = diagnosis.figures
    with database.transaction("read the audit", read_only=True) as connection:
        wanted = audit.EntryFilter(queue.schema, queue.name)
        actions = audit.entries(connection, wanted, _ACTIONS)
        notes = decisions.notes(connection, queue.schema, queue.name, _ACTIONS)
    standby = call.standby()
    of_standby = "" if standby is None else standby.sentence(call.zone)
    text = markdown(diagnosis, figures, actions, call.zone, notes, of_standby)
    call.answer(
        {
            **diagnosis.as_json(),
            "figures": None if figures is None else figures.as_json(call.thresholds(queue.name)),
            "actions": [one.as_json() for one in actions],
            "notes": [one.as_json() for one in notes],
            "markdown": text,
        },
        text.split("\n"),
        says_standby=False,
    )


COMMANDS = (doctor, report, notify)
