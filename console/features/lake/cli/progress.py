"""Progress of a pipeline job: bars on a terminal, else lines; its run file."""

import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from typing import Any

import click

from console.cli.command import CallCommand, as_command
from console.cli.context import ON_ONLY_PLANNED, ON_RESULT, Call
from console.cli.streams import LINE_SECONDS, narrate, status_of
from console.config.urls import HIDDEN, ConnectionUrl
from console.engines import Database
from console.errors import ConsoleError, interrupt_cause
from console.features.lake import launch, runs
from console.features.lake.progress import PhaseProgress
from console.features.lake.runs import RunFile
from console.features.lake.verbs import BY_NAME
from console.formats import duration, plain
from console.verbs.parameters import Parameter

_RECORD = "console.features.lake.cli.jobs.run"
_LOGIN = re.compile(r"(://[^:/@\s]*):[^\s]*@")
_SECRET = re.compile(r"([?&][^=&\s]*(?:secret|password|token|key)[^=&\s]*=)[^&\s]*", re.IGNORECASE)


class RecordedJob(CallCommand):
    """A verb that keeps a run file, except for dry runs. `private`: options whose values are not
    kept in it."""

    def __init__(self, *words: Any, private: Sequence[str] = (), **more: Any) -> None:
        super().__init__(*words, **more)
        self._private = private

    def invoke(self, ctx: click.Context) -> Any:
        if ctx.params.get("dry_run"):
            return super().invoke(ctx)
        with _recorded(self.name or "", ctx, self._private):
            return super().invoke(ctx)


class LaunchedJob(RecordedJob):
    """Of a quick verb: only where the screens have started it as a run."""

    def invoke(self, ctx: click.Context) -> Any:
        return super().invoke(ctx) if launch.RUN_ID in os.environ else CallCommand.invoke(self, ctx)


def job(
    name: str, *before: Parameter, kind: type[CallCommand] = RecordedJob, **more: Any
) -> Callable[[Callable[..., None]], click.Command]:
    """The command of a job that the function runs, where the extra is installed: its options are
    those of the job's value; `before`: those that no form has."""

    def command(run: Callable[..., None]) -> click.Command:
        @wraps(run)
        def with_extra(*words: Any, **options: Any) -> None:
            from console.features.lake.spark import require_extra  # noqa: PLC0415  # slow to import

            require_extra()  # before `run` imports anything of it
            run(*words, **options)

        of = BY_NAME[name]
        parameters = (*before, *of.parameters)
        return as_command(replace(of, run=with_extra, parameters=parameters), kind=kind, **more)

    return command


@contextmanager
def _recorded(verb: str, context: click.Context, private: Sequence[str]) -> Iterator[None]:
    record = RunFile.begin(
        runs.folder(),
        verb,
        # For this run only, not for its child processes.
        os.environ.pop(launch.RUN_ID, ""),
        words=shown_words(sys.argv[1:], private),
        queue=str(context.params.get("name") or ""),
    )
    if record.problem:
        narrate(f"This run will not be in the list of runs: {record.problem}")
    context.meta[_RECORD] = record
    context.meta[ON_ONLY_PLANNED] = record.discard

    hidden = {word: _without(word) for word in _private_values(context, private)}

    def on_result(result: object, lines: Sequence[str]) -> None:
        record.set_result(_shown(result, hidden), [_text(line, hidden) for line in lines])

    context.meta[ON_RESULT] = on_result
    try:
        yield
    except BaseException as error:
        status, parts = _end_of(error)
        record.end(status, {name: _error_text(text, hidden) for name, text in parts.items()})
        raise
    record.end(0)


def _end_of(error: BaseException) -> tuple[int, Mapping[str, str]]:
    """The exit status, and the parts of the error."""
    if (stop := interrupt_cause(error)) is not None:
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


def shown_words(words: Sequence[str], private: Sequence[str] = ()) -> tuple[str, ...]:
    """A command line without secrets, and without the values of these options."""
    shown: list[str] = []
    for word in words:
        option, equals, value = word.partition("=")
        if shown and shown[-1] == "--url":
            shown.append(_shown_url(word))
        elif option == "--url" and equals:
            shown.append(f"--url={_shown_url(value)}")
        elif shown and shown[-1] in private:
            shown.append(HIDDEN)
        elif equals and option in private:
            shown.append(f"{option}={HIDDEN}")
        else:
            shown.append(without_secrets(word))
    return tuple(shown)


def _shown_url(url: str) -> str:
    try:
        return ConnectionUrl.read(url).shown
    except ConsoleError:
        return HIDDEN


def without_secrets(text: str) -> str:
    """The text with the logins of URIs hidden."""
    return _SECRET.sub(rf"\1{HIDDEN}", _LOGIN.sub(rf"\1:{HIDDEN}@", text))


def _private_values(context: click.Context, private: Sequence[str]) -> list[str]:
    """What was given for these options, the longest first."""
    names = [
        parameter.name for parameter in context.command.params if set(parameter.opts) & set(private)
    ]
    found = [word for name in names for word in context.params.get(name or "") or ()]
    return sorted(found, key=len, reverse=True)


def _without(word: str) -> str:
    """A filter without its value; a word that is no filter is all value."""
    match = re.match("[^=~]*[=~]", word)
    return f"{match[0] if match else ''}{HIDDEN}"


def _error_text(text: str, hidden: Mapping[str, str]) -> str:
    """An error quotes the word, or its value."""
    for word, shown in hidden.items():
        value = re.split("[=~]", word, maxsplit=1)[-1]
        text = text.replace(repr(word), repr(shown)).replace(repr(value), repr(HIDDEN))
    return _text(text, hidden)


def _text(text: str, hidden: Mapping[str, str]) -> str:
    for word, shown in hidden.items():
        text = text.replace(word, shown).replace(plain(word), shown)
    return without_secrets(text)


def _shown(value: Any, hidden: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return _text(value, hidden)
    if isinstance(value, Mapping):
        return {name: _shown(one, hidden) for name, one in value.items()}
    return [_shown(one, hidden) for one in value] if isinstance(value, list | tuple) else value


def about(*, database: Database | None = None, queue: str = "", lake: str = "") -> None:
    """Add to the run file of this call, if there is one."""
    if (record := kept()) is not None:
        connection = "" if database is None else database.label
        record.set_subject(connection=connection, queue=queue, lake=without_secrets(lake))


def kept() -> RunFile | None:
    """The run file of this call, if there is one."""
    file: RunFile | None = click.get_current_context().meta.get(_RECORD)
    return file


Shown = Callable[[str, int, int, str], None]
"""Called with a phase, the parts done, their number, and the amount moved as text."""


@contextmanager
def progress(
    call: Call, doing: str, things: str = "parts", total: int = 0
) -> Iterator[PhaseProgress]:
    """Show progress: a bar per phase on a terminal, else a line every few seconds; and in the run
    file. `total`: rows of each phase, if it is known."""
    bars = not call.json and sys.stderr is not None and sys.stderr.isatty()
    with _bars(doing) if bars else _lines(things) as shown:
        record = kept()
        began: dict[str, float] = {}

        def on_progress(phase: str, /, *, done: int, of: int, rows: int, size: int) -> None:
            now = time.monotonic()
            seconds = now - began.setdefault(phase, now)
            moved = _moved(rows, total, size, seconds, left=seconds * (of - done) / max(done, 1))
            shown(phase, done, of, moved)
            if record is not None:
                record.report_progress(_line(phase, done, of, things, moved), rows, size)

        yield on_progress


@contextmanager
def _bars(doing: str) -> Iterator[Shown]:
    from rich import console, markup  # noqa: PLC0415  # slow to import
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
        if now < due.setdefault(phase, now + LINE_SECONDS) and done < of:
            return
        due[phase] = now + LINE_SECONDS
        narrate(_line(phase, done, of, things, moved))

    yield shown


def _line(phase: str, done: int, of: int, things: str, moved: str) -> str:
    return f"{phase}: {done:,} of {of:,} {things}, {moved}"


def _moved(rows: int, total: int, size: int, seconds: float, left: float) -> str:
    """`12,000 of 40,000 rows, 3.4 MB/s, 12 s left`."""
    words = f"{rows:,} of {total:,} rows" if total > rows else f"{rows:,} rows"
    if size and seconds > 0:
        words += f", {size / seconds / 1e6:,.1f} MB/s"
    return f"{words}, {duration(round(left))} left" if left >= 1 else words
