"""How far a job of the pipeline is: bars on a terminal, elsewhere lines, and its run's file."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from console.cli.context import Call
from console.cli.pipeline_record import kept
from console.cli.streams import narrate
from console.formats import plain
from console.pipeline.phases import Told

_LINE_SECONDS = 2.0
"""Between two lines of progress, where stderr is no terminal."""

Shown = Callable[[str, int, int, str], None]
"""Shows of a phase how many parts are done, of how many, and in words with how much."""


@contextmanager
def progress(call: Call, doing: str, things: str = "ranges") -> Iterator[Told]:
    """A bar for each phase on a terminal; elsewhere a line now and then. The run's file has it."""
    bars = not call.json and sys.stderr is not None and sys.stderr.isatty()
    with _bars(doing) if bars else _lines(things) as shown:
        record = kept()
        began: dict[str, float] = {}

        def told(phase: str, /, *, done: int, of: int, rows: int, size: int) -> None:
            now = time.monotonic()
            moved = _moved(rows, size, now - began.setdefault(phase, now))
            shown(phase, done, of, moved)
            if record is not None:
                record.told(_line(phase, done, of, things, moved), rows, size)

        yield told


@contextmanager
def _bars(doing: str) -> Iterator[Shown]:
    from rich import console, markup  # noqa: PLC0415  # verbs shall start at once
    from rich import progress as rich  # noqa: PLC0415

    columns = (
        rich.TextColumn("{task.description}"),
        rich.BarColumn(),
        rich.MofNCompleteColumn(),
        rich.TextColumn("{task.fields[moved]}"),
    )
    with rich.Progress(*columns, console=console.Console(stderr=True)) as bars:
        known: dict[str, rich.TaskID] = {}

        def shown(phase: str, done: int, of: int, moved: str) -> None:
            if phase not in known:
                words = markup.escape(plain(f"{doing}: {phase}"))
                known[phase] = bars.add_task(words, total=of, moved="")
            bars.update(known[phase], completed=done, total=of, moved=moved)

        yield shown


@contextmanager
def _lines(things: str) -> Iterator[Shown]:
    due: dict[str, float] = {}

    def shown(phase: str, done: int, of: int, moved: str) -> None:
        now = time.monotonic()
        if now < due.setdefault(phase, now + _LINE_SECONDS) and done < of:
            return
        due[phase] = now + _LINE_SECONDS
        narrate(_line(phase, done, of, things, moved))

    yield shown


def _line(phase: str, done: int, of: int, things: str, moved: str) -> str:
    return f"{phase}: {done:,} of {of:,} {things}, {moved}"


def _moved(rows: int, size: int, seconds: float) -> str:
    """`12,000 rows, 3.4 MB/s`."""
    words = f"{rows:,} rows"
    return f"{words}, {size / seconds / 1e6:,.1f} MB/s" if size and seconds > 0 else words
