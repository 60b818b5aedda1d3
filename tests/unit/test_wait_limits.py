"""How long a thread waits for a server that says nothing."""

import threading
import time

import pytest

from console.engines import patience
from console.engines.database import why_not_wait
from tests.servers import PATIENCE_SECONDS


def test_without_patience_there_is_no_end() -> None:
    assert why_not_wait() == ""


def test_patience_ends_by_itself_and_holds_inside_only() -> None:
    with patience(0.05):
        assert why_not_wait() == ""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not why_not_wait():
            assert time.monotonic() < deadline
        assert why_not_wait() == "the server has not answered within 0.05 s"
    assert why_not_wait() == ""


def test_whoever_gives_up_ends_it() -> None:
    given_up = threading.Event()
    with patience(100.0, given_up.is_set):
        assert why_not_wait() == ""
        given_up.set()
        assert "nobody waits" in why_not_wait()


@pytest.mark.parametrize(("outer", "inner"), [(0.0, 100.0), (100.0, 0.0)])
def test_the_shorter_patience_counts(outer: float, inner: float) -> None:
    with patience(outer), patience(inner):
        assert why_not_wait() == "the server has not answered within 0 s"


def test_an_outer_one_that_gives_up_is_heard_inside() -> None:
    given_up = threading.Event()
    with patience(100.0, given_up.is_set), patience(50.0):
        assert why_not_wait() == ""
        given_up.set()
        assert why_not_wait() != ""


def test_it_is_the_thread_s_own() -> None:
    told: list[str] = []
    with patience(0.0):
        other = threading.Thread(target=lambda: told.append(why_not_wait()))
        other.start()
        other.join()
    assert told == [""]
