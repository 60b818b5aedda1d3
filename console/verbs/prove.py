"""The proof as an operator is offered it: it works on a connection, on queues of its own."""

import click

from console.verbs.parameters import Parameter
from console.verbs.verb import Verb, admin

PROVE = Verb(
    "prove",
    "what the console claims of each design, proven on this server",
    help="""\
    Prove on a server what the console claims of each design: a report as Markdown.

    On scratch queues of its own, which are gone at the end: installation, order, rollback, killed
    sessions, isolation, full and empty, purge and restore, the doctor's findings and repairs, the
    rights of the three roles, and what an engine's manual leaves open. At most 5 minutes; what a
    killed run left behind the next one drops. Each line is proven, failed, or not applicable and
    why. Exit 1: something failed, or there was no time for it.

    \b
    Examples:
      dbq-console prove --url mssql+pyodbc://me@host/database --output proof.md
      dbq-console prove --profile test --designs ring,fifo:order=strict
      dbq-console prove --url postgresql+psycopg://me@host/database --json
    """,
    parameters=(
        Parameter(
            "designs", "All, or some: ring,fifo:order=strict.", default="all", metavar="all|D,D"
        ),
        Parameter(
            "output", "Write the report to FILE.", click.Path(dir_okay=False), metavar="FILE"
        ),
    ),
    right=admin,
    confirmed=False,
)
