"""What verbs of the pipeline share: the confirmation, and how far a job is."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from console.actions import audit as auditing
from console.actions.plan import MANY_MESSAGES
from console.catalog import Queue
from console.cli.context import Call
from console.cli.streams import narrate
from console.engines import Database
from console.errors import RefusedError
from console.formats import plain

_LINE_SECONDS = 2.0
"""Between two lines of progress, where stderr is no terminal."""


class Told(Protocol):
    """Hears of the progress of a phase: how many of its parts are done, with how much."""

    def __call__(self, phase: str, *, done: int, of: int, rows: int, size: int) -> None: ...


class Offer(Protocol):
    """What a job would do to a queue."""

    @property
    def queue(self) -> Queue: ...

    def lines(self) -> list[str]: ...

    def as_json(self) -> dict[str, Any]: ...


def confirmed(  # what a confirmation is about
    call: Call,
    database: Database,
    verb: str,
    offered: Offer,
    yes: str | None,
    *,
    messages: int,
    dry_run: bool,
) -> bool:
    """Whether to go on; where not, the plan is the answer. RefusedError without a confirmation.

    `dry_run`: also where there is nothing to do: then any confirmation is as good as another.
    """
    by_name = messages > MANY_MESSAGES or call.production(database)
    try:
        return call.confirmed(
            offered.as_json(), offered.lines(), yes, dry_run=dry_run, by_name=by_name
        )
    except RefusedError as error:
        subject = auditing.Subject.of(database, offered.queue, verb)
        auditing.note(subject, auditing.Outcome.REFUSED, detail=error.what)
        raise


@contextmanager
def progress(call: Call, doing: str, things: str = "ranges") -> Iterator[Told]:
    """A bar for each phase on a terminal; elsewhere a line now and then."""
    if call.json or sys.stderr is None or not sys.stderr.isatty():
        yield _Lines(things).told
        return
    from rich import console, markup  # noqa: PLC0415  # verbs shall start at once
    from rich import progress as rich  # noqa: PLC0415

    columns = (
        rich.TextColumn("{task.description}"),
        rich.BarColumn(),
        rich.MofNCompleteColumn(),
        rich.TextColumn("{task.fields[moved]}"),
    )
    with rich.Progress(*columns, console=console.Console(stderr=True)) as bars:
        known: dict[str, tuple[rich.TaskID, float]] = {}

        def told(phase: str, *, done: int, of: int, rows: int, size: int) -> None:
            if phase not in known:
                words = markup.escape(plain(f"{doing}: {phase}"))
                known[phase] = bars.add_task(words, total=of, moved=""), time.monotonic()
            task, began = known[phase]
            moved = _moved(rows, size, time.monotonic() - began)
            bars.update(task, completed=done, total=of, moved=moved)

        yield told


class _Lines:
    def __init__(self, things: str) -> None:
        self._things = things
        self._phase = ""
        self._began = self._next = 0.0

    def told(self, phase: str, *, done: int, of: int, rows: int, size: int) -> None:
        now = time.monotonic()
        if phase != self._phase:
            self._phase, self._began, self._next = phase, now, now + _LINE_SECONDS
        if now < self._next and done < of:
            return
        self._next = now + _LINE_SECONDS
        narrate(
            f"{phase}: {done:,} of {of:,} {self._things}, {_moved(rows, size, now - self._began)}"
        )


def _moved(rows: int, size: int, seconds: float) -> str:
    """`12,000 rows, 3.4 MB/s`."""
    words = f"{rows:,} rows"
    return f"{words}, {size / seconds / 1e6:,.1f} MB/s" if size and seconds > 0 else words
