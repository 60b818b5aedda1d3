"""What verbs of the pipeline share: the file of the run, the confirmation, how far a job is."""

import os
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import click

from console.actions import audit as auditing
from console.actions.plan import MANY_MESSAGES
from console.catalog import Queue
from console.cli.context import HEARD, Call, ConfirmedVerb
from console.cli.interrupts import interrupt_behind, status_of
from console.cli.streams import narrate
from console.config.urls import HIDDEN, ConnectionUrl
from console.engines import Database
from console.errors import ConsoleError, RefusedError
from console.formats import plain
from console.pipeline import launch, runs
from console.pipeline.runs import Record

_LINE_SECONDS = 2.0
"""Between two lines of progress, where stderr is no terminal."""

_RECORD = "console.cli.pipeline.run"
_LOGIN = re.compile(r"(://[^:/@\s]*):[^\s]*@")
_SECRET = re.compile(r"([?&][^=&\s]*(?:secret|password|token|key)[^=&\s]*=)[^&\s]*", re.IGNORECASE)


class Job(ConfirmedVerb):
    """A verb whose runs are kept: what a run of it does, and what becomes of it. No dry run is."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run it."""
        if ctx.params.get("dry_run"):
            return super().invoke(ctx)
        with _recorded(self.name or "", ctx):
            return super().invoke(ctx)


@contextmanager
def _recorded(verb: str, context: click.Context) -> Iterator[None]:
    record = Record.begin(
        runs.folder(),
        verb,
        # It is this run's alone: no process of this one's shall take it for its own.
        os.environ.pop(launch.ID, ""),
        words=shown_words(sys.argv[1:]),
        queue=str(context.params.get("name") or ""),
    )
    if record.problem:
        narrate(f"This run will not be in the list of runs: {record.problem}")
    context.meta[_RECORD] = record

    def heard(result: object, lines: Sequence[str]) -> None:
        record.answered(_shown(result), [without_secrets(line) for line in lines])

    context.meta[HEARD] = heard
    try:
        yield
    except BaseException as error:
        record.end(*_end_of(error))
        raise
    record.end(0)


def _end_of(error: BaseException) -> tuple[int, Mapping[str, str]]:
    """The exit status, and what there is to say."""
    if (stop := interrupt_behind(error)) is not None:
        return status_of(stop), {"what": "Interrupted."}
    if isinstance(error, ConsoleError):
        parts = {"what": error.what, "why": error.why, "next_step": error.next_step}
        return error.exit_status, {name: without_secrets(text) for name, text in parts.items()}
    if isinstance(error, SystemExit | click.exceptions.Exit):
        code = error.code if isinstance(error, SystemExit) else error.exit_code
        return (code if isinstance(code, int) else int(code is not None)), {}
    if isinstance(error, click.ClickException):
        return error.exit_code, {"what": without_secrets(error.format_message())}
    words = without_secrets(f"{type(error).__name__}: {error}")
    return 1, {"what": "The console could not do that.", "why": words}


def shown_words(words: Sequence[str]) -> tuple[str, ...]:
    """Of a command line, what anybody may see."""
    shown: list[str] = []
    for word in words:
        option, equals, value = word.partition("=")
        if shown and shown[-1] == "--url":
            shown.append(_shown_url(word))
        elif option == "--url" and equals:
            shown.append(f"--url={_shown_url(value)}")
        else:
            shown.append(without_secrets(word))
    return tuple(shown)


def _shown_url(url: str) -> str:
    try:
        return ConnectionUrl.read(url).shown
    except ConsoleError:
        return HIDDEN


def without_secrets(text: str) -> str:
    """A text whose URIs tell no login; that of a lake may have one."""
    return _SECRET.sub(rf"\1{HIDDEN}", _LOGIN.sub(rf"\1:{HIDDEN}@", text))


def _shown(value: Any) -> Any:
    if isinstance(value, str):
        return without_secrets(value)
    if isinstance(value, Mapping):
        return {name: _shown(one) for name, one in value.items()}
    return [_shown(one) for one in value] if isinstance(value, list | tuple) else value


def about(*, database: Database | None = None, queue: str = "", lake: str = "") -> None:
    """What is known of this run by now."""
    if (record := _record()) is not None:
        connection = "" if database is None else database.label
        record.about(connection=connection, queue=queue, lake=without_secrets(lake))


def _record() -> Record | None:
    found: Record | None = click.get_current_context().meta.get(_RECORD)
    return found


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
        if yes is None and (record := _record()) is not None:
            record.forget()  # it was only the plan
        subject = auditing.Subject.of(database, offered.queue, verb)
        auditing.note(subject, auditing.Outcome.REFUSED, detail=error.what)
        raise


@contextmanager
def progress(call: Call, doing: str, things: str = "ranges") -> Iterator[Told]:
    """A bar for each phase on a terminal; elsewhere a line now and then. The run's file has it."""
    with _shown_progress(call, doing, things) as shown:
        record, speed = _record(), _Speed()

        def told(phase: str, *, done: int, of: int, rows: int, size: int) -> None:
            shown(phase, done=done, of=of, rows=rows, size=size)
            if record is not None:
                seconds = speed.seconds(phase)
                line = f"{phase}: {done:,} of {of:,} {things}, {_moved(rows, size, seconds)}"
                record.told(line, rows, size)

        yield told


class _Speed:
    """Since when a phase has been going on."""

    def __init__(self) -> None:
        self._began: dict[str, float] = {}

    def seconds(self, phase: str) -> float:
        now = time.monotonic()
        return now - self._began.setdefault(phase, now)


@contextmanager
def _shown_progress(call: Call, doing: str, things: str) -> Iterator[Told]:
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
