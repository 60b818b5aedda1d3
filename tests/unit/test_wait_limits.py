"""How long a thread waits for a server that says nothing."""

import threading
import time

import pytest

from console.engines import time_limit
from console.engines.database import reason_to_stop
from tests.servers import PATIENCE_SECONDS


def test_without_a_limit_there_is_no_end() -> None:
    assert reason_to_stop() == ""


def test_the_limit_ends_by_itself_and_holds_inside_only() -> None:
    with time_limit(0.05):
        assert reason_to_stop() == ""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not reason_to_stop():
            assert time.monotonic() < deadline
        assert reason_to_stop() == "the server has not answered within 0.05 s"
    assert reason_to_stop() == ""


def test_cancelling_ends_it() -> None:
    cancelled = threading.Event()
    with time_limit(100.0, cancelled.is_set):
        assert reason_to_stop() == ""
        cancelled.set()
        assert "nobody waits" in reason_to_stop()


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


def test_it_is_the_thread_s_own() -> None:
    told: list[str] = []
    with time_limit(0.0):
        other = threading.Thread(target=lambda: told.append(reason_to_stop()))
        other.start()
        other.join()
    assert told == [""]
