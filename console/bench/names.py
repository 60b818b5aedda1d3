"""By what the bench's queues, schemas and sessions are told from all others."""

import secrets

PREFIX = "dbq_bench_"
"""Of the names of its queues and schemas; then comes the bench's token."""

APPLICATION = "dbq-bench "
"""Of its sessions' names; then comes the token too: whose session lives, whose queues live."""

_TOKEN_BYTES = 4


def new_token() -> str:
    """What one run of the bench has in all its names."""
    return secrets.token_hex(_TOKEN_BYTES)


def token_of(name: str) -> str | None:
    """The token in the name of a queue or a schema; None: it is not of a bench."""
    if not name.startswith(PREFIX):
        return None
    return name[len(PREFIX) : len(PREFIX) + 2 * _TOKEN_BYTES]


def application_name(token: str) -> str:
    """Of the session that is there as long as the run is."""
    return APPLICATION + token


def load_name(token: str) -> str:
    """Of the sessions that push and pop."""
    return f"{application_name(token)} load"
