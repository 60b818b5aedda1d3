"""The lists of `console.views` as commands."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from threading import Event
from typing import Any

import click

from console.cli.context import Call, queue_argument, verb_options
from console.cli.streams import narrate, signals_handled
from console.rights import Rights
from console.views import get_view
from console.views.view import Display, Source, Subject, View


def list_command(name: str) -> click.Command:
    view = get_view(name)

    @verb_options
    def run(call: Call, name: str | None = None, **values: Any) -> None:
        source = Source(
            lambda: call.database(Rights.READ_ONLY, view.name),
            call.schema,
            name,
            values,
            call.masks,
            call.thresholds,
            lambda line: None if call.json else narrate(line),
        )
        with stopped_by_ctrl_c(source.stop) if view.stops else nullcontext():
            result = view.read(source)
        answer(call, view, result)
        if source.stop.is_set():
            raise KeyboardInterrupt

    named = queue_argument(required=view.subject is Subject.QUEUE)
    command = click.Command(view.name, callback=run, help=view.help)
    command.params = [
        *([] if view.subject is Subject.MACHINE else [named]),
        *(one.as_click() for one in view.parameters),
        *reversed(getattr(run, "__click_params__", [])),
    ]
    return command


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
