"""Connecting one at a time: who tries, who gets whose error, who waits no longer."""

import threading

import pytest

from console.engines import time_limit
from console.engines.database import ConnectLock
from tests.servers import PATIENCE_SECONDS


class Server:
    """Connects when it is let; how often it was tried, and by how many at once."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.tries = 0
        self.together = 0
        self.most_together = 0
        self.tried = threading.Event()
        self.go_on = threading.Event()

    def __call__(self) -> int:
        self.tries += 1
        self.together += 1
        self.most_together = max(self.most_together, self.together)
        self.tried.set()
        assert self.go_on.wait(30)
        self.together -= 1
        if self.error is not None:
            raise self.error
        return self.tries


def all_at_once(turns: ConnectLock, server: Server, count: int) -> list[object]:
    """What each of so many threads gets that wait while the first one tries."""
    found: list[object] = []
    waiting = threading.Semaphore(0)

    def one() -> None:
        waiting.release()
        try:
            found.append(turns.connect(server))
        except OSError as error:
            found.append(error)

    threads = [threading.Thread(target=one) for _ in range(count)]
    threads[0].start()
    assert server.tried.wait(30)
    for thread in threads[1:]:
        thread.start()
    for _ in threads:
        assert waiting.acquire(timeout=PATIENCE_SECONDS)
    # They may not have come to the lock yet; where none fails, that changes nothing.
    threads[-1].join(0.2)
    server.go_on.set()
    for thread in threads:
        thread.join(30)
    return found


def test_where_it_goes_well_each_gets_its_own_one_after_the_other() -> None:
    server = Server()
    assert set(all_at_once(ConnectLock(), server, 6)) == {1, 2, 3, 4, 5, 6}
    assert server.most_together == 1


def test_where_one_fails_those_who_waited_do_not_try() -> None:
    error = OSError("nobody there")
    error.add_note("a note")
    server = Server(error)
    turns = ConnectLock()
    found = all_at_once(turns, server, 6)
    assert server.tries == 1
    assert len({id(one) for one in found}) == 6
    for one in found:
        assert isinstance(one, OSError)
        assert (one.args, one.__notes__) == (("nobody there",), ["a note"])
    # Whoever comes later tries for himself.
    with pytest.raises(OSError, match="nobody there"):
        turns.connect(server)
    server.error = None
    assert turns.connect(server) == 3


def test_a_thread_that_ran_out_of_time_does_not_fail_the_others() -> None:
    turns, server = ConnectLock(), Server()
    server.go_on.set()

    def impatient() -> int:
        raise OSError("too slow for me")

    waits = threading.Event()
    found: list[int] = []

    def other() -> None:
        waits.set()
        found.append(turns.connect(server))

    thread = threading.Thread(target=other)

    def with_another_behind() -> int:
        thread.start()
        assert waits.wait(30)
        thread.join(0.2)
        return impatient()

    with pytest.raises(OSError, match="too slow"), time_limit(0.0):
        turns.connect(with_another_behind)
    thread.join(30)
    assert found == [1]


def test_a_thread_out_of_time_does_not_wait_for_another_s_connect() -> None:
    turns, server = ConnectLock(), Server()
    first = threading.Thread(target=turns.connect, args=(server,))
    first.start()
    assert server.tried.wait(30)

    def refuse() -> int:
        raise OSError("the driver checks the limit itself")

    with pytest.raises(OSError, match="checks the limit"), time_limit(0.1):
        turns.connect(refuse)
    server.go_on.set()
    first.join(30)
