"""The console's errors: three parts, one exit status, complete in another process."""

import pickle

import pytest

from console.actions.push import PartlyPushedError
from console.cli.streams import OutputError
from console.errors import (
    BusyError,
    ConnectionFailedError,
    ConsoleError,
    InDoubtError,
    RefusedError,
    UsageError,
)

STATUSES: dict[type[ConsoleError], int] = {
    ConsoleError: 3,
    UsageError: 2,
    PartlyPushedError: 3,
    OutputError: 3,
    ConnectionFailedError: 3,
    InDoubtError: 3,
    RefusedError: 4,
    BusyError: 4,
}


@pytest.mark.parametrize("kind", STATUSES)
def test_each_error_has_its_exit_status_and_text(kind: type[ConsoleError]) -> None:
    error = kind("What.", why="Why.", next_step="Next.")
    assert error.exit_status == STATUSES[kind]
    assert str(error) == "What.\nWhy.\nNext."
    assert str(kind("What.", next_step="Next.")) == "What.\nNext."
    assert str(kind("What.")) == "What."


@pytest.mark.parametrize("kind", STATUSES)
def test_errors_are_complete_after_pickling(kind: type[ConsoleError]) -> None:
    error = kind("What ü.", why="Why.", next_step="Next.")
    error.exit_status = 77
    error.add_note("a note")
    unpickled = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert type(unpickled) is kind
    assert (unpickled.what, unpickled.why, unpickled.next_step) == ("What ü.", "Why.", "Next.")
    assert (str(unpickled), unpickled.exit_status) == (str(error), 77)
    assert unpickled.__notes__ == ["a note"]
