"""Connecting one at a time, time limits for silent servers, retries."""

import threading
import time

import pytest

from console.engines import retry_transient, time_limit
from console.engines.database import ConnectLock, reason_to_stop
from console.errors import BusyError, TransientError
from tests.servers import PATIENCE_SECONDS


class Server:
    """Connects when `go_on` is set; counts the attempts, and how many were concurrent."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.attempts = 0
        self.concurrent = 0
        self.most_concurrent = 0
        self.attempted = threading.Event()
        self.go_on = threading.Event()

    def __call__(self) -> int:
        self.attempts += 1
        self.concurrent += 1
        self.most_concurrent = max(self.most_concurrent, self.concurrent)
        self.attempted.set()
        assert self.go_on.wait(30)
        self.concurrent -= 1
        if self.error is not None:
            raise self.error
        return self.attempts


def all_at_once(lock: ConnectLock, server: Server, count: int) -> list[object]:
    """The result of each of `count` threads; the others wait while the first one tries."""
    found: list[object] = []
    waiting = threading.Semaphore(0)

    def one() -> None:
        waiting.release()
        try:
            found.append(lock.connect(server))
        except OSError as error:
            found.append(error)

    threads = [threading.Thread(target=one) for _ in range(count)]
    threads[0].start()
    assert server.attempted.wait(30)
    for thread in threads[1:]:
        thread.start()
    for _ in threads:
        assert waiting.acquire(timeout=PATIENCE_SECONDS)
    # They may not have reached the lock yet; if none fails, that changes nothing.
    threads[-1].join(0.2)
    server.go_on.set()
    for thread in threads:
        thread.join(30)
    return found


def test_successful_connects_run_one_after_the_other() -> None:
    server = Server()
    assert set(all_at_once(ConnectLock(), server, 6)) == {1, 2, 3, 4, 5, 6}
    assert server.most_concurrent == 1


def test_threads_that_waited_for_a_failed_connect_do_not_try() -> None:
    error = OSError("nobody there")
    error.add_note("a note")
    server = Server(error)
    lock = ConnectLock()
    found = all_at_once(lock, server, 6)
    assert server.attempts == 1
    assert len({id(one) for one in found}) == 6
    for oserror in found:
        assert isinstance(oserror, OSError)
        assert (oserror.args, oserror.__notes__) == (("nobody there",), ["a note"])
    # A later caller tries again.
    with pytest.raises(OSError, match="nobody there"):
        lock.connect(server)
    server.error = None
    assert lock.connect(server) == 3


def test_a_thread_that_ran_out_of_time_does_not_fail_the_others() -> None:
    lock, server = ConnectLock(), Server()
    server.go_on.set()

    def impatient() -> int:
        raise OSError("too slow for me")

    waits = threading.Event()
    found: list[int] = []

    def other() -> None:
        waits.set()
        found.append(lock.connect(server))

    thread = threading.Thread(target=other)

    def with_another_behind() -> int:
        thread.start()
        assert waits.wait(30)
        thread.join(0.2)
        return impatient()

    with pytest.raises(OSError, match="too slow"), time_limit(0.0):
        lock.connect(with_another_behind)
    thread.join(30)
    assert found == [1]


def test_a_thread_out_of_time_does_not_wait_for_another_s_connect() -> None:
    lock, server = ConnectLock(), Server()
    first = threading.Thread(target=lock.connect, args=(server,))
    first.start()
    assert server.attempted.wait(30)

    def refuse() -> int:
        raise OSError("the driver checks the limit itself")

    with pytest.raises(OSError, match="checks the limit"), time_limit(0.1):
        lock.connect(refuse)
    server.go_on.set()
    first.join(30)


def test_there_is_no_reason_to_stop_without_a_limit() -> None:
    assert reason_to_stop() == ""


def test_a_time_limit_expires_and_applies_only_inside_its_block() -> None:
    with time_limit(0.05):
        assert reason_to_stop() == ""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not reason_to_stop():
            assert time.monotonic() < deadline
        assert reason_to_stop() == "the server has not answered within 0.05 s"
    assert reason_to_stop() == ""


def test_cancelling_is_a_reason_to_stop() -> None:
    cancelled = threading.Event()
    with time_limit(100.0, cancelled.is_set):
        assert reason_to_stop() == ""
        cancelled.set()
        assert "no longer needed" in reason_to_stop()


@pytest.mark.parametrize(("outer", "inner"), [(0.0, 100.0), (100.0, 0.0)])
def test_the_shorter_limit_counts(outer: float, inner: float) -> None:
    with time_limit(outer), time_limit(inner):
        assert reason_to_stop() == "the server has not answered within 0 s"


def test_cancelling_an_outer_limit_ends_an_inner_one() -> None:
    cancelled = threading.Event()
    with time_limit(100.0, cancelled.is_set), time_limit(50.0):
        assert reason_to_stop() == ""
        cancelled.set()
        assert reason_to_stop() != ""


def test_a_time_limit_applies_only_to_its_own_thread() -> None:
    reasons: list[str] = []
    with time_limit(0.0):
        other = threading.Thread(target=lambda: reasons.append(reason_to_stop()))
        other.start()
        other.join()
    assert reasons == [""]


@pytest.fixture
def paused(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that were requested; none takes time."""
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    return pauses


class Work:
    """Fails `failures` times."""

    def __init__(self, failures: int, error: type[Exception] = TransientError) -> None:
        self.calls = 0
        self._failures = failures
        self._error = error

    def __call__(self) -> int:
        self.calls += 1
        if self.calls <= self._failures:
            raise self._error(f"failure {self.calls}")
        return self.calls


@pytest.mark.parametrize("failures", range(6))
def test_transient_failures_are_retried_until_success(failures: int, paused: list[float]) -> None:
    assert retry_transient(Work(failures)) == failures + 1
    assert len(paused) == failures
    assert all(0 < pause <= 0.8 for pause in paused)


def test_the_sixth_failure_is_raised(paused: list[float]) -> None:
    work = Work(99)
    with pytest.raises(TransientError, match="failure 6"):
        retry_transient(work)
    assert (work.calls, len(paused)) == (6, 5)


@pytest.mark.parametrize("error", [BusyError, ValueError])
def test_other_errors_are_not_retried(error: type[Exception], paused: list[float]) -> None:
    work = Work(1, error)
    with pytest.raises(error):
        retry_transient(work)
    assert (work.calls, paused) == (1, [])


def test_a_failure_is_not_retried_once_the_condition_is_false(paused: list[float]) -> None:
    work = Work(99)
    with pytest.raises(TransientError, match="failure 2"):
        retry_transient(work, while_true=lambda: work.calls < 2)
    assert (work.calls, len(paused)) == (2, 1)
