"""A few threads at a time: many connections are not opened, sampled or examined all at once."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

ASKED, SOON, ROUND = range(3)
"""Why somebody wants a turn, what goes first before the others: an operator asked for it, figures
call for it, it is time again."""


class Turns:
    """At most `most` work at a time.

    Whoever works for longer than `lease_seconds`, as one does who waits for a silent server, goes
    on, but is no longer counted: that keeps nobody else waiting. After each turn there is none for
    `rest` times as long as this process worked in it, but for what an operator asks; nor is there
    in the first `begins_after` seconds.
    """

    def __init__(
        self, most: int, lease_seconds: float, *, rest: float = 0.0, begins_after: float = 0.0
    ) -> None:
        self._most = most
        self._lease_seconds = lease_seconds
        self._rest = rest
        self._changed = threading.Condition()
        self._ends: dict[object, float] = {}
        """Those at work -> when they count no longer."""
        self._waiting: Counter[int] = Counter()
        self._rested_at = time.monotonic() + begins_after

    @contextmanager
    def turn(self, why: int, given_up: Callable[[], bool]) -> Iterator[None]:
        """Waits for it, or until `given_up` says so, which is looked at in `wake`."""
        mine = object()
        with self._changed:
            self._waiting[why] += 1
            while (pause := self._pause(why)) > 0 and not given_up():
                self._changed.wait(pause)
            self._waiting[why] -= 1
            self._ends[mine] = time.monotonic() + self._lease_seconds
            worked = time.process_time()
        try:
            yield
        finally:
            with self._changed:
                del self._ends[mine]
                rest = self._rest * (time.process_time() - worked)
                self._rested_at = max(self._rested_at, time.monotonic() + rest)
                self._changed.notify_all()

    def wake(self) -> None:
        """Somebody who waits may have given up."""
        with self._changed:
            self._changed.notify_all()

    def _pause(self, why: int) -> float:
        """Until somebody who wants it for that may have it; 0: now."""
        now = time.monotonic()
        counted = [end for end in self._ends.values() if end > now]
        if len(counted) >= self._most:
            return min(counted) - now
        if any(self._waiting[before] for before in range(why)):
            return self._lease_seconds
        return 0.0 if why == ASKED else max(0.0, self._rested_at - now)
