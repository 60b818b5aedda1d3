"""The verb `consumers`: who pops from a queue, and who pushes to it."""

import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import click

from console.catalog import Queue
from console.cli.context import Call, Rights, queue_name, verb_options
from console.cli.streams import narrate
from console.engines import Database
from console.formats import duration, moment, numbered, plain, rate
from console.monitor import consumers as words
from console.monitor.consumer_watch import ConsumerWatch
from console.monitor.consumers import NOT_RECORDED, Consumer, Consumers, gone, latest, recorded
from console.monitor.figures import RateWindow, key_of
from console.monitor.recording.recorder import folder
from console.monitor.sample import take_sample

_CLAIMS_SECONDS = 0.5
"""Claims last longer than calls: they are read so often, the sessions several times as often."""
_HEADS = ("who", "does", "sessions", "connected", "last pop", "last call", "msg/s", "claims")


@click.command()
@queue_name
@click.option(
    "--seconds",
    type=click.FloatRange(0, 3600),
    default=3.0,
    show_default=True,
    metavar="N",
    help="How long to sample; 0: once, without a rate.",
)
@click.option(
    "--recordings",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Where gone ones are looked for. By default this user's state folder.",
)
@verb_options
def consumers(call: Call, name: str, seconds: float, recordings: Path | None) -> None:
    """Who pops from a queue and who pushes to it, now and in the last day.

    From what is there anyway: the server's own view of its sessions and their locks, and what
    claims name. A session is seen by a lock, by its last statement, or by a claim; one that calls
    for a moment and then commits may be missed. Where no claim names a consumer, its last pop and
    its rate are ?, with the reason. Those that are gone come from what was recorded.

    \b
    Examples:
      dbq-console consumers orders
      dbq-console consumers orders --seconds 30 --json
    """
    database = call.database(Rights.READ_ONLY, "consumers")
    queue = call.find(database, name)
    if seconds > 0 and not call.json:
        narrate(f"Sampling for {duration(seconds)}.")
    root = recordings or folder()
    seen = latest(recorded(root, database.label, queue.schema, queue.name, datetime.now(UTC)))
    found, looks, pop_rate = _sampled(database, queue, seconds, seen)
    left = gone(seen, found.consumers)
    answer = {"connection": database.label, "samples": looks, "pop_per_second": pop_rate}
    answer |= found.as_json() | {"gone": [one.as_json() for one in left], "recorded": bool(seen)}
    heading = f"{queue.name} ({queue.design.name}), {numbered(looks, 'sample')}"
    heading += "" if pop_rate is None else f": {rate(pop_rate)} messages popped a second"
    lines = [heading, *_lines(found), *_gone_lines(call, left, recorded=bool(seen))]
    call.answer(answer, [plain(line) for line in lines])


def _sampled(
    database: Database, queue: Queue, seconds: float, seen: Sequence[Consumer]
) -> tuple[Consumers, int, float | None]:
    """Sessions many times, claims less often; with the samples, and the queue's pop rate."""
    watch, window = ConsumerWatch(database), RateWindow(queue.design.flow)
    watch.recall(queue, seen)
    ends_at = time.monotonic() + seconds

    def pop_rate() -> float | None:
        sample = take_sample(database, only=[queue])
        (one,) = sample.queues
        at = one.taken_at or sample.taken_at
        return window.add(at, one.row, counts_rows=sample.counts_rows).pop

    looks = 1
    if seconds > 0:
        pop_rate()
    while (left := ends_at - time.monotonic()) > 0:
        watch.look([queue], {})
        looks += 1 + watch.glances([queue], min(left, _CLAIMS_SECONDS))
    known = pop_rate() if seconds > 0 else None
    return watch.look([queue], {key_of(queue): known})[key_of(queue)], looks, known


def _lines(found: Consumers) -> Iterator[str]:
    if found.consumers:
        yield from _table([_HEADS, *(_row(one, found.at) for one in found.consumers)])
        yield from (f"  {words.name(one)}: {words.where(one)}" for one in found.consumers)
    else:
        yield "Nobody was seen that pops or pushes."
    yield from (f"? {why}" for why in words.reasons(found.consumers))
    yield from (f"Not visible: {what}: {why}" for what, why in found.missing.items())


def _row(one: Consumer, now: datetime) -> tuple[str, ...]:
    cells = (words.name(one), words.does(one), words.sessions(one), words.ago(one.since, now))
    seen = (words.last_pop(one, now), words.last_call(one, now))
    return (*cells, *seen, words.per_second(one), words.claims(one))


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    rows = [[plain(cell) for cell in row] for row in rows]
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    for row in rows:
        cells = [
            f"{c:<{w}}" if n < 2 else f"{c:>{w}}"
            for n, (c, w) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()


def _gone_lines(call: Call, left: Sequence[Consumer], *, recorded: bool) -> Iterator[str]:
    if not recorded:
        yield f"Gone: ? ({NOT_RECORDED})"
        return
    yield f"Gone in the last day: {len(left)}"
    for one in left:
        seen = "" if one.last_seen is None else moment(one.last_seen, call.zone)
        yield f"  {words.name(one)}: {words.does(one)}, last seen {seen}; {words.where(one)}"


COMMANDS = (consumers,)
