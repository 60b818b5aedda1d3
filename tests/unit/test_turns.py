"""WorkLimiter: so many at a time, and nobody waits for one that hangs."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from console.monitor.sampler import REQUESTED, ROUTINE, SOON, WorkLimiter
from tests.servers import wait_until

LONG = 3600.0


def never() -> bool:
    return False


class Others:
    """Threads that want a turn each, and what became of them."""

    def __init__(self, turns: WorkLimiter) -> None:
        self._turns = turns
        self.came: list[int] = []
        self._leave = threading.Event()
        self._threads: list[threading.Thread] = []

    def want(self, why: int = ROUTINE) -> None:
        def work() -> None:
            with self._turns.turn(why, self._leave.is_set):
                self.came.append(why)
                self._leave.wait()

        self._threads.append(threading.Thread(target=work))
        self._threads[-1].start()

    def end(self) -> None:
        self._leave.set()
        self._turns.wake()
        for thread in self._threads:
            thread.join()


@contextmanager
def others(turns: WorkLimiter) -> Iterator[Others]:
    found = Others(turns)
    try:
        yield found
    finally:
        found.end()


def waiting(turns: WorkLimiter, number: int) -> bool:
    return turns._waiting.total() == number


def test_no_more_than_so_many_at_a_time() -> None:
    turns = WorkLimiter(2, LONG)
    with others(turns) as found:
        for _ in range(5):
            found.want()
        wait_until(lambda: len(found.came) == 2 and waiting(turns, 3), "two work, three wait")
        with turns.turn(REQUESTED, lambda: True):  # given up: it does not wait
            assert len(found.came) == 2


def test_who_works_longer_than_the_lease_keeps_nobody_waiting() -> None:
    turns = WorkLimiter(1, 0.0)
    with others(turns) as found:
        for _ in range(5):
            found.want()
        wait_until(lambda: len(found.came) == 5, "none waits for another")


def test_what_is_asked_goes_first_then_what_figures_call_for() -> None:
    turns = WorkLimiter(1, LONG)
    with others(turns) as found:
        with ExitStack() as mine:
            mine.enter_context(turns.turn(ROUTINE, never))
            for number, why in enumerate((ROUTINE, SOON, REQUESTED), 1):
                found.want(why)
                wait_until(partial(waiting, turns, number), "it waits")
            assert found.came == []
        wait_until(lambda: bool(found.came), "one had its turn")
        assert found.came == [REQUESTED]


def test_after_work_there_is_a_rest_but_for_what_is_asked() -> None:
    turns = WorkLimiter(1, LONG, rest=1e9)
    with turns.turn(ROUTINE, never):
        sum(range(100_000))
    with others(turns) as found:
        found.want(ROUTINE)
        wait_until(lambda: waiting(turns, 1), "it rests")
        assert found.came == []
        found.want(REQUESTED)
        wait_until(lambda: found.came == [REQUESTED], "what is asked does not rest")
