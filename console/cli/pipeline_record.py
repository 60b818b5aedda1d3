"""The file of a run of the pipeline: what was begun, how it ended, with no secret in it."""

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import click

from console.cli.context import HEARD, ConfirmedVerb
from console.cli.interrupts import interrupt_behind, status_of
from console.cli.streams import narrate
from console.config.urls import HIDDEN, ConnectionUrl
from console.engines import Database
from console.errors import ConsoleError
from console.pipeline import launch, runs
from console.pipeline.runs import Record

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
    if (record := kept()) is not None:
        connection = "" if database is None else database.label
        record.about(connection=connection, queue=queue, lake=without_secrets(lake))


def kept() -> Record | None:
    """The file of the run that this call is; None where there is none."""
    found: Record | None = click.get_current_context().meta.get(_RECORD)
    return found
