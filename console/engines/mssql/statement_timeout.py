"""Cancelling a statement before the driver's own timeout.

That one counts whole seconds and ignores the thread's `time_limit`. ODBC lets another thread cancel
a statement, which the server confirms.
"""

import contextlib
import contextvars
import threading
import time
from collections.abc import Callable, Iterator

from console.engines.database import reason_to_stop, time_left

_POLL_SECONDS = 0.1


class StatementStopped(Exception):  # noqa: N818  # it was ended
    """The statement was cancelled; the text says why."""


@contextlib.contextmanager
def watched(cancel: Callable[[], object], ends_at: float | None) -> Iterator[None]:
    """Cancel what runs in the block at that `time.monotonic()`, or at the thread's `time_limit`.

    Raises StatementStopped then, even if the response arrived at that very moment: the driver may
    not have all of it.
    """
    if ends_at is None and time_left() is None:
        yield
        return
    done = threading.Event()
    reasons: list[str] = []

    def watch() -> None:
        while not (reason := reason_to_stop() or _timeout_reason(ends_at)):
            pause = _POLL_SECONDS
            if ends_at is not None:
                pause = min(pause, max(0.0, ends_at - time.monotonic()))
            if done.wait(pause):
                return
        reasons.append(reason)
        # Repeatedly: the driver may not have started when it was cancelled first.
        while not done.is_set():
            with contextlib.suppress(Exception):  # then the driver's own timeout has to end it
                cancel()
            done.wait(_POLL_SECONDS)

    # In the calling thread's context, which has its time limit.
    context = contextvars.copy_context()
    watcher = threading.Thread(target=context.run, args=(watch,), name="dbq-watch", daemon=True)
    watcher.start()
    try:
        try:
            yield
        finally:
            # Joined: a cursor must not be closed or reused while a thread may cancel it.
            done.set()
            watcher.join()
    except Exception as error:
        if not reasons:
            raise
        raise StatementStopped(reasons[0]) from error
    if reasons:
        raise StatementStopped(reasons[0])


def _timeout_reason(ends_at: float | None) -> str:
    reached = ends_at is not None and time.monotonic() >= ends_at
    return "this statement reached its time-out" if reached else ""
