"""The lists of `console.views` as commands."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from threading import Event
from typing import Any

import click

from console.cli.command import NAME, OPTIONAL_NAME, as_command
from console.cli.context import Call
from console.cli.streams import narrate, signals_handled
from console.verbs.command import Command
from console.views.view import Display, Source, Subject, View


def list_command(view: View[Any, Any]) -> click.Command:
    def run(call: Call, name: str | None = None, **values: Any) -> None:
        source = Source(
            call.database,
            call.schema,
            name,
            values,
            call.masks,
            call.thresholds,
            call.settings_of,
            lambda line: None if call.json else narrate(line),
        )
        with stopped_by_ctrl_c(source.stop) if view.stops else nullcontext():
            result = view.read(source)
        answer(call, view, result)
        if source.stop.is_set():
            raise KeyboardInterrupt

    names = {Subject.QUEUE: (NAME,), Subject.DATABASE: (OPTIONAL_NAME,), Subject.MACHINE: ()}
    parameters = (*names[view.subject], *view.parameters)
    return as_command(Command(view.name, run, view.help, parameters))


def answer(call: Call, view: View[Any, Any], result: Any) -> None:
    display = Display(call.zone, datetime.now(UTC))
    call.answer(view.as_json(result), [*view.lines(result, display)])


@contextmanager
def stopped_by_ctrl_c(stop: Event) -> Iterator[None]:
    """The first Ctrl-C sets the event, so that no sample is interrupted; the next one interrupts.

    Another handler of SIGINT, which ignores it for instance, is left in place.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    with signals_handled(lambda _: stop.set(), (signal.SIGINT,), once=True):
        yield
