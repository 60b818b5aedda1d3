"""What a read-only connection is for: every verb that only looks works on it, in full."""

import pytest

from console.engines import Database
from console.errors import RefusedError
from tests.cli.calls import Console
from tests.cli.conftest import Install

LOOKING = {
    "status": ["{queue}"],
    "messages": ["{queue}", "--payload"],
    "errors": ["{queue}"],
    "waits": ["{queue}", "--seconds", "0"],
    "consumers": ["{queue}", "--seconds", "0"],
    "roles": [],
}


@pytest.mark.parametrize("design", [["ring", "in_hand=on"], ["claim"]], ids=["ring", "claim"])
def test_looking_wants_nothing_that_a_read_only_connection_refuses(
    console: Console, install: Install, design: list[str]
) -> None:
    name = install(*design)
    console.done("push", name, "x")
    for verb, needed in LOOKING.items():
        words = [word.format(queue=name) for word in needed]
        for options in ([], ["--json"]):
            assert console.done(verb, *words, *options, "--rights", "read-only").out, verb


def test_a_look_that_would_do_more_is_refused_before_the_server_is_asked(
    console: Console, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a mistake of ours: nothing relies on the server's read-only transactions alone."""
    name = install("fifo")
    looking = Database.session

    def forgetful(self: Database, doing: str, *, read_only: bool = False) -> object:
        return looking(self, doing)

    monkeypatch.setattr(Database, "session", forgetful)
    answer = console("status", name, "--rights", "read-only")
    assert (answer.status, answer.out) == (RefusedError.exit_status, b"")
    assert "This connection is read-only." in answer.err
