"""How a verb is cut off from outside, and how that is told from other ends."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class Stopped(KeyboardInterrupt):
    """SIGTERM or SIGHUP: undone and given back is what Ctrl-C would have undone."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def interrupt_behind(error: BaseException | None) -> KeyboardInterrupt | None:
    """The interrupt that is the error, or in whose wake it came (a driver cut off in a call)."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error


def status_of(stop: KeyboardInterrupt) -> int:
    """The exit status, as a shell says it."""
    return 128 + (stop.number if isinstance(stop, Stopped) else signal.SIGINT)


@contextmanager
def asked_to_end() -> Iterator[threading.Event]:
    """Set by Ctrl-C and SIGTERM: for what goes on until somebody ends it."""
    ended = threading.Event()
    with heard(lambda _: ended.set()):
        yield ended


@contextmanager
def heard(tell: Callable[[int], None], *, once: bool = False) -> Iterator[None]:
    """Ctrl-C and SIGTERM are told and cut nothing off; `once`: the second of a kind does again."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def handle(number: int, _: FrameType | None) -> None:
        if once:
            signal.signal(number, before[signal.Signals(number)])
        tell(number)

    for number in before:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
