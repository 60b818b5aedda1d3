"""Ending a statement before the driver does.

A driver's time-out counts whole seconds, and knows nothing of a thread's patience. ODBC lets
another thread cancel a statement: the server is told to stop, and says that it did.
"""

import contextlib
import contextvars
import threading
import time
from collections.abc import Callable, Iterator

from console.engines.database import patience_left, why_not_wait

_LOOKS_EVERY_SECONDS = 0.1
"""At whether anybody still waits for the answer."""


class StatementStopped(Exception):  # noqa: N818  # it was ended
    """The statement was told to stop, whatever came of it. The text says why."""


@contextlib.contextmanager
def watched(cancel: Callable[[], object], ends_at: float | None) -> Iterator[None]:
    """What runs inside is cancelled at that `time.monotonic()`, or when patience ends.

    Raises Ended then, also where the answer came at that very moment: what a driver still has of it
    may not be all.
    """
    if ends_at is None and patience_left() is None:
        yield
        return
    done = threading.Event()
    reasons: list[str] = []

    def watch() -> None:
        while not (reason := why_not_wait() or _over(ends_at)):
            pause = _LOOKS_EVERY_SECONDS
            if ends_at is not None:
                pause = min(pause, max(0.0, ends_at - time.monotonic()))
            if done.wait(pause):
                return
        reasons.append(reason)
        # Again, for the driver may not have begun when it was told first.
        while not done.is_set():
            with contextlib.suppress(Exception):  # then the driver's own time-out has to end it
                cancel()
            done.wait(_LOOKS_EVERY_SECONDS)

    # In the asking thread's context, which is where its patience stands.
    context = contextvars.copy_context()
    watcher = threading.Thread(target=context.run, args=(watch,), name="dbq-watch", daemon=True)
    watcher.start()
    try:
        try:
            yield
        finally:
            # Joined: a cursor must not be closed, nor used again, while a thread may cancel it.
            done.set()
            watcher.join()
    except Exception as error:
        if not reasons:
            raise
        raise StatementStopped(reasons[0]) from error
    if reasons:
        raise StatementStopped(reasons[0])


def _over(ends_at: float | None) -> str:
    over = ends_at is not None and time.monotonic() >= ends_at
    return "this statement reached its time-out" if over else ""
