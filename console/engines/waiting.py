"""How long a thread waits for a server that may have fallen silent.

A server's own time-outs end what it is slow at. Where it is paused, or the network swallows what it
says, they do nothing: only the one who asks can give up. Engine modules look here while they wait.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True)
class _Patience:
    seconds: float
    ends_at: float
    given_up: Callable[[], bool]


_PATIENCE: ContextVar[_Patience | None] = ContextVar("patience", default=None)


def _never() -> bool:
    return False


@contextmanager
def patience(seconds: float, given_up: Callable[[], bool] = _never) -> Iterator[None]:
    """All that this thread asks of servers inside may take so long together.

    It ends earlier where `given_up` says so, or an outer patience ends.
    """
    outer = _PATIENCE.get()
    ends_at = time.monotonic() + seconds
    if outer is not None and outer.ends_at < ends_at:
        seconds, ends_at = outer.seconds, outer.ends_at
    told = given_up if outer is None else (lambda: given_up() or outer.given_up())
    token = _PATIENCE.set(_Patience(seconds, ends_at, told))
    try:
        yield
    finally:
        _PATIENCE.reset(token)


def patience_left() -> float | None:
    """Seconds until this thread should wait no longer; None: nobody has told it."""
    now = _PATIENCE.get()
    return None if now is None else now.ends_at - time.monotonic()


def why_not_wait() -> str:
    """Why this thread should wait no longer; nothing where it may."""
    now = _PATIENCE.get()
    if now is None:
        return ""
    if now.given_up():
        return "nobody waits for the answer any more"
    if time.monotonic() >= now.ends_at:
        return f"the server has not answered within {now.seconds:g} s"
    return ""


_UNHURRIED: ContextVar[bool] = ContextVar("unhurried", default=False)


@contextmanager
def unhurried() -> Iterator[None]:
    """What this thread asks inside may take hours: only a lost connection, or impatience, ends it.

    For statements that were freed of the server's own time-out.
    """
    token = _UNHURRIED.set(True)
    try:
        yield
    finally:
        _UNHURRIED.reset(token)


def is_unhurried() -> bool:
    """Whether no answer is late."""
    return _UNHURRIED.get()
