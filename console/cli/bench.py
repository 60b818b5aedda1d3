"""`bench`: how fast each design is on a server, every message checked."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from console import engines
from console.bench.load import Load
from console.bench.message import SMALLEST
from console.cli.context import Call, Rights, verb_options
from console.cli.streams import narrate
from console.engines import Database
from console.errors import UsageError

if TYPE_CHECKING:
    from console.bench.measured import Round
    from console.bench.rounds import Entrant


class Numbers(click.ParamType[tuple[int, ...]]):
    """`1` or `1,10,100`."""

    name = "numbers"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """Each at least 1."""
        if isinstance(value, tuple):
            return value
        parts = str(value).split(",")
        if not all(part.isascii() and part.isdecimal() and int(part) for part in parts):
            self.fail(f"{value!r} are no whole numbers, as 1 or 1,10,100.", param, ctx)
        return tuple(dict.fromkeys(int(part) for part in parts))


@click.command()
@click.option(
    "--designs",
    default="all",
    show_default=True,
    metavar="all|D,D",
    help="Which; with options: fifo:order=strict.",
)
@click.option(
    "--peers",
    default="none",
    show_default=True,
    metavar="all|none|P,P",
    help="Also other queues in tables, of the extra [bench].",
)
@click.option("--producers", type=click.IntRange(1, 1000), default=16, show_default=True)
@click.option("--consumers", type=click.IntRange(1, 1000), default=16, show_default=True)
@click.option(
    "--batch", type=Numbers(), default="1", show_default=True, help="Messages a call; or 1,10,100."
)
@click.option(
    "--payload",
    type=click.IntRange(min=SMALLEST),
    default=300,
    show_default=True,
    help="Bytes of a message.",
)
@click.option(
    "--seconds", type=click.FloatRange(min=0.1), default=10.0, show_default=True, help="Of a round."
)
@click.option("--warmup", type=click.FloatRange(min=0.0), default=2.0, show_default=True)
@click.option("--rounds", type=click.IntRange(1, 1000), default=3, show_default=True)
@click.option(
    "--room",
    type=click.IntRange(min=0),
    default=Load.room,
    show_default=True,
    help="Producers wait while so many messages are in the queue; 0: only where a ring is full.",
)
@click.option("--ring-size", type=Numbers(), help="Slots of a ring; several are compared.")
@click.option(
    "--held-xmin", is_flag=True, help="Keep one old transaction open: how each design degrades."
)
@click.option(
    "--with-console", is_flag=True, help="Each round also with the console beside it, at 1 Hz."
)
@click.option("--floor", "with_floor", is_flag=True, help="Also single-row updates by key.")
@click.option(
    "--against-pgbench", is_flag=True, help="The floor, also by pgbench with the same statement."
)
@click.option(
    "--report", type=click.Path(path_type=Path, dir_okay=False), help="A picture: FILE.svg."
)
@verb_options
def bench(
    call: Call,
    *,
    with_floor: bool,
    against_pgbench: bool,
    warmup: float,
    report: Path | None,
    **more: Any,
) -> None:
    """How fast each design is here: scratch queues, every message checked, nothing left behind.

    Without a connection on an embedded server (the extra [demo]), as durable as any. Designs take
    turns, round by round; figures are medians. Exit 1: a message was lost, doubled or damaged.

    \b
    Examples:
      dbq-console bench
      dbq-console bench --designs ring,fifo --batch 1,10,100 --json
      dbq-console bench --designs all --url postgresql+psycopg://me@host/database
    """
    # Verbs shall start at once.
    from console.actions.bench import Plan, Wanted  # noqa: PLC0415
    from console.bench import drawing  # noqa: PLC0415
    from console.bench.ran_on import ran_on  # noqa: PLC0415
    from console.bench.results import comparisons  # noqa: PLC0415
    from console.bench.words import as_json, load_in_words  # noqa: PLC0415
    from console.cli.bench_words import lines  # noqa: PLC0415

    wanted = Wanted(
        designs=more.pop("designs"),
        peers=more.pop("peers"),
        batches=more.pop("batch"),
        ring_sizes=more.pop("ring_size") or (),
        floor=with_floor or against_pgbench,
    )
    settings = Load(warmup_seconds=warmup, **more)
    if report is not None and report.suffix.lower() != ".svg":
        raise UsageError("The report is an SVG.", next_step="Give it such a name: bench.svg")
    with _database(call, settings) as (database, postmaster):
        plan = Plan(database, call.schema_for(database), settings, narrate)
        entrants = plan.entrants(wanted)
        about = ran_on(database, embedded=postmaster is not None)
        if about.durable is False:
            narrate("This server does not write durably (fsync is off): the figures are too good.")
        if call.profile is not None and call.production(database):
            narrate("This is a PRODUCTION database: the bench takes all that the server can give.")
        results = plan.run(
            entrants, _tell_round, postmaster=postmaster, against_pgbench=against_pgbench
        )
    compared = comparisons(results)
    if report is not None:
        _write(report, drawing.report(about, load_in_words(settings), results, compared))
    call.answer(as_json(about, settings, results), lines(about, settings, results, compared))
    if not all(result.ok for result in results):
        sys.exit(1)


@contextmanager
def _database(call: Call, load: Load) -> Iterator[tuple[Database, int | None]]:
    """The one that the call names, else an embedded server's; and that server's process."""
    from console.actions.bench import TIMEOUTS  # noqa: PLC0415

    if call.profile is not None:
        database = call.database(Rights.ADMIN, "bench")
        database.timeouts = TIMEOUTS  # before its first connection
        yield database, None
        return
    from console.engines.embedded import EmbeddedServer  # noqa: PLC0415  # verbs shall start at once

    narrate("Starting a PostgreSQL server for the bench...")
    connections = load.producers + load.consumers + 30
    settings = {
        "max_connections": str(max(100, connections)),
        "shared_buffers": "512MB",
        # A checkpoint in one round and none in the next would be a difference of nothing else.
        "max_wal_size": "4GB",
        "checkpoint_timeout": "30min",
    }
    with EmbeddedServer.start(settings=settings) as server:
        url = server.create_database("bench")
        database = engines.open_database(url, timeouts=TIMEOUTS, label="embedded")
        try:
            yield database, server.pid
        finally:
            database.close()


def _write(report: Path, picture: str) -> None:
    try:
        report.write_text(picture, encoding="utf-8")
    except OSError as error:
        # The figures took minutes: they are told all the same.
        narrate(f"The report could not be written: {error}")
        return
    narrate(f"The report is in {report}.")


def _tell_round(entrant: "Entrant", one: "Round") -> None:
    words = f"{entrant.contestant.name} x{entrant.contestant.batch}"
    console = ", console beside it" if one.console else ""
    narrate(f"round {one.number}{console}: {words}: {one.messages_per_second:,.0f}/s")


COMMANDS = (bench,)
