"""What `status` tells of one queue."""

from typing import Any

from tests.cli.calls import Console

STATES = ("ready", "scheduled", "claimed", "stuck", "errors", "done")


def figures(console: Console, name: str) -> dict[str, Any]:
    """State -> how many; None where it is not known, or there is none of the kind."""
    found = console.status(name)
    assert not found["problem"]
    return {state: found[state] for state in STATES}


def counts(*numbers: int | None) -> dict[str, int | None]:
    """The same, from numbers in the order of STATES."""
    return dict(zip(STATES, numbers, strict=True))


def sampled_error(console: Console, name: str) -> tuple[int, str]:
    """Of the one group of errors: how many, and one of them."""
    (group,) = console.done("errors", name, "--json").json["groups"]
    return group["count"], str(group["sample"])
