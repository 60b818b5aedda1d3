"""Read-only verbs: designs, status."""

import textwrap
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from queue import SimpleQueue
from typing import NoReturn

import click

from console import engines
from console.catalog import STUCK_AFTER_SECONDS, Kind, Queue
from console.cli.context import Call, queue_names, verb_options
from console.cli.several import over_connections
from console.cli.streams import narrate
from console.designs import DESIGNS, Design
from console.designs import design as find_design
from console.engines import Database
from console.errors import UsageError
from console.monitor.sample import SAMPLING_TIMEOUTS
from console.monitor.sample_queries import StuckAfter
from console.monitor.sampler import Reading, Sampler
from console.monitor.snapshot import QueueSnapshot
from console.rights import ConnectionRights, Rights
from console.rollup_files import existing_default_lake
from console.verbs.queues import complete_designs
from console.views.status import VIEW, SampledQueues
from console.views.view import Display, Source


@click.command()
@click.argument("name", metavar="[NAME]", required=False, shell_complete=complete_designs)
@verb_options
def designs(call: Call, name: str | None) -> None:
    """List the designs with engines, options and verbs; or describe one.

    The page of a design has its guarantees, its cost and when to choose it, how it works, what can
    go wrong, and its states, order, verbs and options. `dbq-console help designs` compares
    them.

    \b
    Examples:
      dbq-console designs
      dbq-console designs ring
      dbq-console designs --json
    """
    found = list(DESIGNS.values()) if name is None else [find_design(name)]
    lines: list[str] = []
    for design in found:
        lines += [*_head(design), *([] if name is None else _workings(design)), *_uses(design), ""]
    call.answer({"designs": [_design(design) for design in found]}, lines[:-1])


def _head(design: Design) -> list[str]:
    return [
        f"{design.name}: {design.title} ({design.source}), on {', '.join(design.engines)}",
        *_wrapped(design.summary),
        *_wrapped(design.advice),
    ]


def _workings(design: Design) -> list[str]:
    """The part that only the page of one design has."""
    orders = {f" with {o}={v}": order for (o, v), order in design.option_orders.items()}
    states = {f" with {o}={v}": more for (o, v), more in design.option_states.items()}
    return [
        "",
        *_wrapped(design.details),
        "",
        *(
            line
            for which, order in {"": design.order, **orders}.items()
            for line in _wrapped(f"order{which}: {order.promise}")
        ),
        *(
            f"  states{which}: {' '.join(names)}"
            for which, names in {"": design.states, **states}.items()
        ),
    ]


def _uses(design: Design) -> list[str]:
    return [
        *(
            f"  --option {option.name}={option.default}  {option.summary} ({option.range})"
            + (f", on {', '.join(option.engines)} only" if option.engines else "")
            for option in design.options
        ),
        f"  verbs: {' '.join(design.verbs)}",
        *(
            f"  with {option}={value}: {' '.join(verbs)}"
            for (option, value), verbs in design.option_verbs.items()
        ),
    ]


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 78, initial_indent="  ", subsequent_indent="  ")


def _design(design: Design) -> dict[str, object]:
    return {
        "design": design.name,
        "title": design.title,
        "source": design.source,
        "summary": design.summary,
        "advice": design.advice,
        "details": design.details,
        "order": design.order.value,
        "engines": list(design.engines),
        "options": {
            engine: [
                {
                    "option": option.name,
                    "default": option.default,
                    "values": option.range,
                    "summary": option.summary,
                }
                for option in design.options_on(engine)
            ]
            for engine in design.engines
        },
        "states": list(design.states),
        "verbs": {engine: list(design.verbs) for engine in design.engines},
        "verbs_with": [
            {"option": option, "value": value, "verbs": list(verbs)}
            for (option, value), verbs in design.option_verbs.items()
        ],
    }


@click.command()
@queue_names
@click.option("--watch", is_flag=True, help="Sample every 2 s, with rates, until Ctrl-C.")
@verb_options
@over_connections("watch")
def status(call: Call, names: Sequence[str], watch: bool) -> None:
    """Sample the queues once: states, depth, age, gap.

    `≈` is an estimate, `?` unknown, `·` does not apply. One sample has no rates; --watch shows
    them, and with --json writes one object per sample. Below the table are figures that reached a
    limit of the profile ("limits" in --json), and the slowest subscriber of a ring; for queues
    given by name also each subscriber ("subscribers"), and how long messages waited and were
    processed in the last 5 minutes ("latency"); and whether the login could do more than this
    connection may ("enforced": whether the server itself refuses what read-only forbids).

    \b
    Examples:
      dbq-console status
      dbq-console status orders mail --json
      dbq-console status --watch
      dbq-console status --fleet shops
    """
    database = call.database(Rights.READ_ONLY, "status")
    only = chosen(call, database, names)
    if watch:
        _watch(call, database, only)
    values = {"only": only, "stuck_after_seconds": stuck_after(call)}
    seen = VIEW.read(Source(lambda: database, values=values, thresholds_of=call.thresholds))
    if names:
        seen = replace(seen, queues=_expecting(seen.queues, database), named=True)
    _show(call, database, seen)


def _expecting(shown: Sequence[QueueSnapshot], database: Database) -> list[QueueSnapshot]:
    """Rings with the time at which they will be full by the forecast."""
    if (lake := existing_default_lake()) is None or all(one.capacity is None for one in shown):
        return list(shown)
    from console.monitor.recording.forecast import Forecast, of_all  # noqa: PLC0415

    known, now = of_all(lake, database.label), datetime.now(UTC)
    return [known.get((one.schema, one.queue), Forecast()).with_filling(one, now) for one in shown]


def chosen(call: Call, database: Database, names: Sequence[str]) -> list[Queue] | None:
    """The queues of those names; None, which means all, without names."""
    only = [call.find(database, name, any_design=True) for name in names] if names else None
    for queue in only or ():
        if queue.kind is Kind.ARCHIVE:
            raise UsageError(f"Only the archive of {queue.name!r} is left: it has no status.")
    return only


def _watch(call: Call, database: Database, only: Sequence[Queue] | None) -> NoReturn:
    """Sample until interrupted; a failed sample is reported and retried."""
    readings: SimpleQueue[Reading] = SimpleQueue()
    sampler = Sampler(
        database,
        interval_seconds=_WATCH_SECONDS,
        stuck_after_seconds=stuck_after(call),
        only=only,
    )
    sampler.start(readings.put)
    try:
        while True:
            reading = readings.get()
            if reading.error is not None:
                narrate(str(reading.error))
                continue
            if reading.promoted_at == reading.taken_at:
                narrate("It was a standby and is a primary now.")
            named = only is not None
            seen = SampledQueues(reading.queues, reading.login, call.thresholds, named)
            _show(call, database, seen)
    finally:
        sampler.stop(SAMPLING_TIMEOUTS.statement_seconds)


def stuck_after(call: Call) -> StuckAfter:
    """How long a claim of each queue may last."""
    return STUCK_AFTER_SECONDS if call.profile is None else call.profile.stuck_after_seconds


def _show(call: Call, database: Database, seen: SampledQueues) -> None:
    standing = ConnectionRights(
        call.rights, seen.login, transactions=bool(database.product.read_only_options)
    )
    if call.schema is not None:
        of_schema = [one for one in seen.queues if one.schema == call.schema]
        seen = replace(seen, queues=of_schema, where=f"schema {call.schema!r}")
    lines = [*VIEW.lines(seen, Display(call.zone, datetime.now(UTC)))]
    if standing.words != call.rights.word:
        lines.append(f"This connection: {standing.words}{_could(standing)}.")
    call.answer({**VIEW.as_json(seen), "connection": standing.as_json(database.label)}, lines)


def _could(standing: ConnectionRights) -> str:
    """What the server would let the login do beyond the connection's rights."""
    if standing.enforced is not False or standing.login is None:
        return ""
    if standing.login.superuser:
        return "; its login is a superuser"
    return f"; its login could {', '.join(standing.login.can)}"


_WATCH_SECONDS = 2.0


def engine_named(call: Call, name: str | None) -> engines.Product:
    """The engine of `--engine`, else that of the connection."""
    if name is not None:
        return engines.product(name)
    if call.product is None:
        raise UsageError(
            "No engine was named.",
            next_step=f"Name one with --engine: {', '.join(sorted(engines.PRODUCTS))}.",
        )
    return call.product


COMMANDS = (designs, status)
