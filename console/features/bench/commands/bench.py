"""Measure how fast each design is here, on scratch queues, checking every message.

Without a connection it starts an embedded server (extra [demo]) with durable commits. Designs
take turns, round by round; figures are medians. Peers are other queues in tables (extra
[bench]). Exit 1: a message was lost, doubled or damaged.

\b
Examples:
  dbq-console bench
  dbq-console bench --designs ring,fifo --batch 1,10,100 --json
  dbq-console bench --designs all --url postgresql+psycopg://me@host/database
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from console import engines
from console.cli.context import Call, aligned
from console.cli.streams import narrate
from console.engines import Database
from console.errors import UsageError
from console.features.bench.candidate import Load
from console.features.bench.report import (
    as_json,
    comparison_lines,
    delivery_lines,
    describe_load,
    svg,
    verdict_lines,
    wait_lines,
)
from console.features.bench.results import (
    CandidateResult,
    Comparison,
    comparisons,
    hot_share,
    log_bytes_per_message,
    pages_per_message,
)
from console.features.bench.verbs import BENCH, MORE_OF_BENCH, bench_request
from console.formats import NOT_APPLICABLE, UNKNOWN

if TYPE_CHECKING:
    from console.features.bench.rounds import Entrant
    from console.features.bench.server import Environment
    from console.load.round_figures import RoundFigures

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
    latency = result.latency(name)
    if latency is None:
        return (NOT_APPLICABLE,) * 3
    return (f"{latency.p50:,.2f}", f"{latency.p95:,.2f}", f"{latency.p99:,.2f}")


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


def _run(call: Call, /, **given: Any) -> None:
    from console.features.bench.action import BenchCandidates  # noqa: PLC0415
    from console.features.bench.server import environment_of  # noqa: PLC0415

    wanted, settings = bench_request(given)
    report = None if given["report"] is None else Path(given["report"])
    if report is not None and report.suffix.lower() != ".svg":
        raise UsageError("The report is an SVG file.", next_step="Name it *.svg, like bench.svg.")
    with _database(call, settings) as (database, postmaster):
        candidates = BenchCandidates(database, call.schema_for(database), settings, narrate)
        entrants = candidates.entrants(wanted)
        about = environment_of(database, embedded=postmaster is not None)
        if about.durable is False:
            narrate("This server does not write durably (fsync is off): real rates are lower.")
        if call.profile is not None and call.production(database):
            narrate("This is a PRODUCTION database: the bench uses all of the server's capacity.")
        results = candidates.run(
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
    from console.features.bench.action import TIMEOUTS  # noqa: PLC0415

    if call.profile is not None:
        database = call.database()
        database.timeouts = TIMEOUTS  # before its first connection
        yield database, None
        return
    from console.features.demo.embedded import EmbeddedServer  # noqa: PLC0415

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


def _narrate_round(entrant: Entrant, figures: RoundFigures) -> None:
    words = f"{entrant.candidate.name} x{entrant.candidate.batch}"
    console = ", console beside it" if figures.console else ""
    narrate(f"round {figures.number}{console}: {words}: {figures.messages_per_second:,.0f}/s")


_PARAMETERS = (*BENCH.parameters, *MORE_OF_BENCH)
COMMAND = replace(BENCH, run=_run, help=__doc__, parameters=_PARAMETERS)
