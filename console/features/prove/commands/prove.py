"""Prove every claim about each design on this server; prints a Markdown report.

It uses its own scratch queues, dropped at the end: installation, order, rollback, killed
sessions, isolation, full and empty, purge and restore, the doctor's findings and repairs, the
rights of the three roles, and what an engine's manual leaves open. It takes 5 minutes at most;
the next run drops what a killed one left. Each line is proven, failed, or not applicable (and
why). Exit 1: something failed or was not reached in time.

\b
Examples:
  dbq-console prove --url mssql+pyodbc://me@host/database --output proof.md
  dbq-console prove --profile test --designs ring,fifo:order=strict
  dbq-console prove --url postgresql+psycopg://me@host/database --json
"""

import sys
from pathlib import Path

import click

from console.cli.context import Call
from console.cli.streams import narrate
from console.verbs.command import Command, admin
from console.verbs.parameters import Parameter


def _run(call: Call, /, designs: str, output: str | None) -> None:
    from console.features.prove.run import prove_designs  # noqa: PLC0415  # a verb imports what it uses

    database = call.database()
    if call.production(database):
        narrate("This is a PRODUCTION database: the proof kills only its own sessions.")
    report = prove_designs(database, call.schema_for(database), designs, narrate)
    lines = report.markdown
    if output is not None:
        try:
            Path(output).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
            lines = [report.summary, f"The report is in {output}."]
        except OSError as error:
            narrate(f"The report could not be written: {error}")
    call.answer({**report.as_json(), "markdown": "\n".join(report.markdown)}, lines)
    if not report.ok:
        sys.exit(1)


_PARAMETERS = (
    Parameter("designs", "All, or some: ring,fifo:order=strict.", default="all", metavar="all|D,D"),
    Parameter("output", "Write the report to FILE.", click.Path(dir_okay=False), metavar="FILE"),
)
COMMAND = Command("prove", _run, __doc__, _PARAMETERS, admin)
