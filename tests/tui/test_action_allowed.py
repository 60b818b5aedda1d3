"""Which verb an operator is offered first."""

import pytest

from console.tui.dialogs.verbs import suggested


@pytest.mark.parametrize(
    ("stuck", "errors", "state", "verb"),
    [
        (3, 5, "", "release"),
        (0, 5, "", "requeue"),
        (None, None, "", ""),
        (3, 5, "error", "requeue"),
        (3, 5, "done", "archive"),
        (3, 5, "ready", ""),
        (0, 5, "claimed", "release"),
    ],
)
def test_the_state_of_what_is_meant_counts_before_the_queues_figures(
    stuck: int | None, errors: int | None, state: str, verb: str
) -> None:
    assert suggested(stuck, errors, state) == verb
