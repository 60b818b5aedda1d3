"""Verbs of the doctor: doctor, report."""

import sys
from collections.abc import Sequence

import click

from console import catalog
from console.actions import audit
from console.catalog import Queue
from console.cli.context import (
    Call,
    ConfirmedVerb,
    Rights,
    confirm_by_name,
    confirmation,
    verb_options,
)
from console.cli.streams import narrate
from console.doctor.finding import Diagnosis, Finding, Repair
from console.engines import Database
from console.errors import UsageError
from console.formats import moment, plain
from console.monitor import snapshot, take_sample

_ACTIONS = 10


class _WithCodes(ConfirmedVerb):
    """The families of findings are loaded when they are asked for: other verbs shall start soon."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """All codes, the gravest first."""
        del ctx
        from console.doctor.codes import CODES  # noqa: PLC0415

        with formatter.section("Findings"):
            formatter.write_dl(
                [(code.name, f"{code.severity.word}: {code.meaning}") for code in CODES]
            )


@click.command(cls=_WithCodes)
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--fix", is_flag=True, help="Mend what can be mended without judgement. One NAME.")
@confirmation
@verb_options
def doctor(call: Call, names: Sequence[str], fix: bool, yes: str | None, dry_run: bool) -> None:
    """Prove what is wrong with queues, in order of gravity, and say what mends it.

    Each finding has its evidence, cause, consequence and repair. "All clear" is said only after a
    look at everything. With --fix and --yes NAME the repairs run that need no judgement and no lock
    that stops traffic; each is proven again first, counted and audited. One that cannot be done
    is told on stderr, and the others go on.

    Exit 0: all clear, or notes only; 1: a finding, or something that could not be looked at.

    \b
    Examples:
      dbq-console doctor
      dbq-console doctor orders --fix --yes orders
    """
    if fix and len(names) != 1:
        raise UsageError("--fix wants the name of one queue.")
    if yes is not None and not fix:
        raise UsageError("--yes goes with --fix.")
    database = call.database(Rights.OPERATOR if fix else Rights.READ_ONLY, "doctor --fix")
    queues = [call.find(database, name) for name in names] or _all(call, database)
    found = _examined(call, database, queues)
    if fix:
        from console.doctor.fixing import repairs_of, tried  # noqa: PLC0415

        (before,) = found
        repairs = repairs_of(before, call.rights)
        only_planned = dry_run or yes != names[0]
        _plan(call, database, before, repairs, shown=only_planned)
        if repairs:
            confirm_by_name(yes, dry_run, names[0])
        if only_planned:
            _end(found)
        for repair in repairs:
            for line in tried(repair, database).lines:
                narrate(line)
        if repairs:
            found = _examined(call, database, queues)
    call.answer({"queues": [one.as_json() for one in found]}, _lines(call, found))
    _end(found)


def _all(call: Call, database: Database) -> list[Queue]:
    return [q for q in catalog.in_use(database) if call.schema in (None, q.schema)]


def _examined(call: Call, database: Database, queues: Sequence[Queue]) -> list[Diagnosis]:
    from console.doctor.examine import examine  # noqa: PLC0415

    return examine(database, queues, thresholds_of=call.thresholds, masks=call.masks)


def _plan(
    call: Call, database: Database, diagnosis: Diagnosis, repairs: Sequence[Repair], *, shown: bool
) -> None:
    if not shown:
        return
    lines = [line for repair in repairs for line in repair.plan(database)]
    plan = [{"summary": repair.summary, "lines": list(repair.plan(database))} for repair in repairs]
    words = lines or ["Nothing here can be mended without judgement."]
    call.answer(
        {"queues": [diagnosis.as_json()], "plan": plan, "done": False},
        [*_lines(call, [diagnosis]), "", "Repairs:", *(f"  {plain(line)}" for line in words)],
    )


def _end(found: Sequence[Diagnosis]) -> None:
    sys.exit(0 if all(one.healthy for one in found) else 1)


def _lines(call: Call, found: Sequence[Diagnosis]) -> list[str]:
    lines: list[str] = []
    for one in found:
        lines.append(plain(f"{one.queue.label} ({one.queue.design.name}): {one.verdict}"))
        for finding in one.findings:
            lines += [f"  {plain(line)}" for line in _finding(call, finding)]
        lines += [f"  not looked at: {plain(why)}" for why in one.unseen]
    return lines or ["No queues are installed or adopted here."]


def _finding(call: Call, finding: Finding) -> list[str]:
    since = "" if finding.since is None else f", since {moment(finding.since, call.zone)}"
    lines = [f"{finding.code.severity.word}: {finding.summary} [{finding.code.name}]{since}"]
    parts = (("cause", finding.cause), ("consequence", finding.consequence))
    lines += [f"  {head}: {words}" for head, words in parts if words]
    lines += [f"  {name}: {value}" for name, value in finding.evidence.items()]
    if finding.repair is not None:
        lines.append(f"  repair: {finding.repair.summary}")
        if finding.repair.command:
            lines.append(f"    {finding.repair.command}")
    return lines


@click.command()
@click.argument("name")
@verb_options
def report(call: Call, name: str) -> None:
    """A queue for the ticket, as Markdown: figures, findings, last actions. Never a payload.

    \b
    Examples:
      dbq-console report orders > ticket.md
      dbq-console report orders --json
    """
    from console.doctor.report import markdown  # noqa: PLC0415

    database = call.database(Rights.READ_ONLY, "report")
    queue = call.find(database, name)
    (diagnosis,) = _examined(call, database, [queue])
    (sample,) = take_sample(database, only=[queue]).queues
    figures = snapshot(sample, database.label)
    with database.transaction("read the audit", read_only=True) as connection:
        wanted = audit.Wanted(queue.schema, queue.name)
        actions = audit.entries(connection, database.product, wanted, _ACTIONS)
    text = markdown(diagnosis, figures, actions, call.zone)
    call.answer(
        {
            **diagnosis.as_json(),
            "figures": figures.as_json(),
            "actions": [one.as_json() for one in actions],
            "markdown": text,
        },
        text.split("\n"),
    )


COMMANDS = (doctor, report)
