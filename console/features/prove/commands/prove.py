"""Prove every claim about each design on this server; prints a Markdown report.

It uses its own scratch queues, dropped at the end: installation, order, rollback, killed
sessions, isolation, full and empty, purge and restore, the doctor's findings and repairs, the
rights of the three roles. Before that it asks what only a server can answer: what the SQL leans
on, and what it would mean if it were false; where this login may, in databases of its own (on SQL
Server with row versions and without, case-sensitive, with optimized locking), and as each of the
three roles. It takes 10 minutes at most; the next run drops what a killed one left. Each line is
proven, failed, not answered (an error or a time-out came first), or not applicable (and why).
Exit 1: something failed, was not answered, or was not reached in time.

\b
Examples:
  dbq-console prove --url mssql+pyodbc://me@host/database --output proof.md
  dbq-console prove --profile test --designs ring,fifo:order=strict
  dbq-console prove --profile test --designs none --claims held-lock,readpast
  dbq-console prove --url postgresql+psycopg://me@host/database --json
"""

import sys
from pathlib import Path

import click

from console.cli.context import Call
from console.cli.streams import narrate
from console.verbs.command import Command, admin
from console.verbs.parameters import Parameter


def _run(call: Call, /, designs: str, claims: str, output: str | None) -> None:
    from console.features.prove.run import prove_designs  # noqa: PLC0415  # a verb imports what it uses

    database = call.database()
    if call.production(database):
        narrate("This is a PRODUCTION database: the proof kills only its own sessions.")
    report = prove_designs(database, call.schema_for(database), designs, narrate, claims)
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
    Parameter(
        "designs",
        "All, none, or some: ring,fifo:order=strict.",
        default="all",
        metavar="all|none|D,D",
    ),
    Parameter(
        "claims",
        "About the server: all, none, or some: held-lock,readpast. Default: all, but none with "
        "named designs.",
        default="",
        metavar="all|none|C,C",
    ),
    Parameter("output", "Write the report to FILE.", click.Path(dir_okay=False), metavar="FILE"),
)
COMMAND = Command("prove", _run, __doc__, _PARAMETERS, admin)
