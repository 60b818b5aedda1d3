"""What is run again after the server undid it, and what is not."""

import time

import pytest

from console.engines import retry_transient
from console.errors import BusyError, TransientError


@pytest.fixture(autouse=True)
def paused(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that were made, none of which took time."""
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    return pauses


class Work:
    """Fails so many times."""

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
def test_it_is_run_until_it_succeeds(failures: int, paused: list[float]) -> None:
    assert retry_transient(Work(failures)) == failures + 1
    assert len(paused) == failures
    assert all(0 < pause <= 0.8 for pause in paused)


def test_six_failures_are_the_callers(paused: list[float]) -> None:
    work = Work(99)
    with pytest.raises(TransientError, match="failure 6"):
        retry_transient(work)
    assert (work.calls, len(paused)) == (6, 5)


@pytest.mark.parametrize("error", [BusyError, ValueError])
def test_no_other_error_is_tried_again(error: type[Exception], paused: list[float]) -> None:
    work = Work(1, error)
    with pytest.raises(error):
        retry_transient(work)
    assert (work.calls, paused) == (1, [])


def test_what_went_too_far_is_not_run_again(paused: list[float]) -> None:
    work = Work(99)
    with pytest.raises(TransientError, match="failure 2"):
        retry_transient(work, while_true=lambda: work.calls < 2)
    assert (work.calls, len(paused)) == (2, 1)
