"""The verb that lists the runs of the pipeline on this machine."""

from datetime import UTC, datetime, tzinfo

import click

from console.cli.context import Call, verb_options
from console.cli.streams import narrate
from console.formats import bare_moment, duration, numbered, offset, plain
from console.pipeline import runs as keeping
from console.pipeline.runs import Run


@click.command()
@click.option("--limit", type=click.IntRange(min=1), default=20, metavar="N", help="[20]")
@verb_options
def runs(call: Call, limit: int) -> None:
    """List the runs of the pipeline's jobs on this machine, the newest first.

    Those of the command line and those that a console has begun. With --json also the whole result
    of each. What ended without a word was killed: the same command goes on where it was.

    \b
    Examples:
      dbq-console pipeline runs
      dbq-console pipeline runs --limit 5 --json
    """
    now = datetime.now(UTC)
    found = keeping.read(keeping.folder())
    shown = found.runs[:limit]
    if found.unreadable:
        narrate(f"{numbered(found.unreadable, 'file')} of {keeping.folder()} cannot be read.")
    value = {"runs": [run.as_json(now) for run in shown], "unreadable": found.unreadable}
    call.answer(value, _lines(shown, call.zone, now))


def _lines(shown: tuple[Run, ...], zone: tzinfo | None, now: datetime) -> list[str]:
    if not shown:
        return ["Nothing has been run on this machine."]
    head = (f"began ({offset(now, zone)})", "verb", "queue", "outcome", "rows", "rows/s", "took")
    table = [head, *(_cells(run, zone, now) for run in shown)]
    widths = [max(len(row[at]) for row in table) for at in range(len(head))]
    lines = []
    for row in table:
        left = [cell.ljust(width) for cell, width in zip(row[:4], widths[:4], strict=True)]
        right = [cell.rjust(width) for cell, width in zip(row[4:], widths[4:], strict=True)]
        lines.append("  ".join([*left, *right]).rstrip())
    for at, run in reversed([*enumerate(shown, start=1)]):
        words = run.told if run.runs else run.error.get("what", "")
        if words:
            lines.insert(at + 1, f"    {plain(words)}")
    return lines


def _cells(run: Run, zone: tzinfo | None, now: datetime) -> tuple[str, ...]:
    seconds, speed = run.seconds(now), run.rows_per_second(now)
    return (
        bare_moment(run.began_at, zone),
        run.verb,
        plain(run.queue),
        run.outcome.value,
        run.moved,
        "" if speed is None else f"{speed:,.0f}",
        "" if seconds is None else duration(seconds),
    )


COMMANDS = (runs,)
