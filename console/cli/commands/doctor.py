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

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache, partial
from typing import TYPE_CHECKING

from console.catalog import Queue
from console.cli.command import NAMES
from console.cli.context import Call
from console.cli.planned import confirmed, target_of
from console.cli.streams import narrate
from console.doctor.checks import CODES
from console.doctor.context import with_connection_options
from console.doctor.finding import Diagnosis, countdown
from console.doctor.stopped_consumers import ConsumptionHistory
from console.doctor.verbs import DOCTOR, plan_repairs
from console.engines import THIS_MACHINE, TRANSPORT, Database
from console.errors import UsageError
from console.formats import plain
from console.monitor.consumers import PastSample
from console.plan import Control, Plan
from console.rights import Rights
from console.verbs.command import Command
from console.verbs.parameters import DURATION, Parameter
from console.views.doctor import VIEW
from console.views.view import Display, Source

if TYPE_CHECKING:
    from console.monitor.sampler import WorkLimiter

_AT_WORK = 8
"""Databases that are worked on at the same time; while one waits for its second sample, others
are."""
_LEASE_SECONDS = 5.0
"""A server that takes longer keeps no other waiting."""


def _run(  # noqa: PLR0913  # the options of the command line, by name
    call: Call,
    *,
    names: Sequence[str],
    fix: bool,
    code: Sequence[str],
    subscriber: str | None,
    all_codes: bool,
    idle_for: float,
    yes: str | None,
    dry_run: bool,
) -> None:
    limited = bool(code or subscriber)
    _require_together(
        names, fix=fix, limited=limited, all_codes=all_codes, yes=yes, dry_run=dry_run
    )
    if all_codes:
        _describe_codes(call)
        return
    database = call.database("doctor --fix")
    queues = [call.find(database, name, any_design=True) for name in names] or call.queues(database)
    examine = examination(call, database, queues, idle_for)
    diagnoses = examine()
    repaired = 0
    if fix:
        (before,) = diagnoses
        target = target_of(call, database, before.queue)
        plan = plan_repairs(target, before, {"code": code, "subscriber": subscriber})
        if not _repairs_confirmed(call, before, plan, yes, dry_run=dry_run):
            if not dry_run:
                _end(diagnoses)
            return
        result = plan.run(Control(), lambda now: narrate(now.text))
        repaired = result.done
        for line in result.lines:
            narrate(line)
        if plan.needed:
            diagnoses = examine()
    answer = {**VIEW.as_json(diagnoses)}
    answer |= {"done": repaired} if fix else {}
    answer["transport"] = protection = database.capabilities.facts.get(TRANSPORT, THIS_MACHINE)
    call.answer(answer, [*_lines(call, diagnoses), *_protection_lines(protection)])
    _end(diagnoses)


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
    call.answer(
        {"codes": [code.as_json() for code in CODES]},
        [line for code in CODES for line in code.lines],
    )


@cache
def _turns() -> WorkLimiter:
    """Of the databases of this call."""
    from console.monitor.sampler import WorkLimiter  # noqa: PLC0415  # slow to import

    return WorkLimiter(_AT_WORK, _LEASE_SECONDS)


def examination(
    call: Call, database: Database, queues: Sequence[Queue], idle_for_seconds: float
) -> Callable[[], Sequence[Diagnosis]]:
    """A function that examines the queues, and remembers the pops seen by its earlier calls."""
    from console.doctor.silent_consumers import ConsumerHistory  # noqa: PLC0415
    from console.monitor.past import past  # noqa: PLC0415

    known = past()

    def recall(queue: Queue) -> Sequence[PastSample]:
        of = (database.label, queue.schema, queue.name)
        return () if known is None else known.consumers(known.folder(), *of, datetime.now(UTC))

    profile = call.command_line.profile
    options = call.connection_words or (("--profile", profile) if profile else ())
    remembered = {
        "queues": queues,
        "consumption": ConsumptionHistory(idle_for_seconds or 30.0, waits=idle_for_seconds > 0),
        "consumers": ConsumerHistory(database, recall),
        "forecasts": None if known is None else known.forecasts(database.label),
        "turns": _turns() if call.of_several else None,
    }

    def examine() -> Sequence[Diagnosis]:
        with with_connection_options(*options), ExitStack() as shown:
            on_known = None if call.json else partial(_show_known, call, shown)
            values = {**remembered, "on_known": on_known}
            source = Source(
                lambda: database, values=values, masks=call.masks, thresholds_of=call.thresholds
            )
            return VIEW.read(source)

    return examine


def _show_known(
    call: Call, shown: ExitStack, diagnoses: Sequence[Diagnosis], seconds: float
) -> None:
    """On stderr what is known while the consumption is not, and when that is asked again: on a
    terminal counted down, and replaced by the result."""
    of = [f"{call.connection_words[-1]}:"] if call.of_several else []
    known, due = [*of, *_lines(call, diagnoses)], time.monotonic() + seconds

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


def _end(diagnoses: Sequence[Diagnosis]) -> None:
    sys.exit(0 if all(diagnosis.healthy for diagnosis in diagnoses) else 1)


def _lines(call: Call, diagnoses: Sequence[Diagnosis]) -> list[str]:
    return [*VIEW.lines(diagnoses, Display(call.zone, datetime.now(UTC)))]


def _codes() -> list[tuple[str, str]]:
    return [(code.name, f"{code.severity.word}: {code.meaning}") for code in CODES]


IDLE_FOR = Parameter(
    "idle-for",
    "Consumers count as stopped when nothing is popped for this long while messages wait. If a "
    "first sample shows no consumption, waits this long, once for all queues; 0s: never.",
    DURATION,
    default="30s",
    metavar="T",
)
_PARAMETERS = (
    NAMES,
    Parameter("fix", "Run the repairs that need no judgement. One NAME.", is_flag=True),
    *DOCTOR.parameters,
    Parameter(
        "codes",
        "Print every possible finding with its repair; needs no connection.",
        is_flag=True,
        dest="all_codes",
    ),
    IDLE_FOR,
)
COMMAND = Command(
    "doctor",
    _run,
    __doc__,
    _PARAMETERS,
    lambda given: Rights.OPERATOR if given["fix"] else Rights.READ_ONLY,
    confirmed=True,
    alone=("fix", "all_codes"),
    table=("Findings", _codes),
)
