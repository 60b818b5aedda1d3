"""Actions killed at random points: run again, they finish, and no message is missing."""

import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from console import sql
from console.catalog import audit
from console.engines import Database, open_database
from console.monitor import owners
from tests.contract.client import Client
from tests.contract.filled import read_messages
from tests.servers import PATIENCE_SECONDS, Server, fresh_database, wait_until
from tests.tools.queues import install_queue
from tests.tools.warm import Forked

MESSAGES = 200
_DEADLINE_SECONDS = PATIENCE_SECONDS
CASES: list[tuple[str, dict[str, str], str]] = [
    ("ring", {"size": "1000"}, "purge"),
    ("ring", {"size": "1000", "in_hand": "on"}, "requeue"),
    ("claim", {}, "release"),
    ("split", {}, "archive"),
]
LONG_CASES: list[tuple[str, dict[str, str], str]] = [
    ("fifo", {}, "purge"),
    ("heap", {}, "purge"),
    ("claim", {}, "requeue"),
    ("status", {}, "archive"),
]
"""With --long only."""


@pytest.fixture(scope="module")
def database(server: Server) -> Iterator[Database]:
    with fresh_database(server.url) as url:
        opened = open_database(url)
        yield opened
        opened.close()


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    ("name", "options", "verb"),
    [*CASES, *(pytest.param(*more, marks=pytest.mark.long) for more in LONG_CASES)],
    ids=str,
)
def test_a_killed_action_finishes_when_run_again(
    database: Database, name: str, options: dict[str, str], verb: str, long: bool, tmp_path: Path
) -> None:
    for seed in range(20 if long else 1):
        dice = random.Random(f"{name} {verb} {seed}")
        queue = install_queue(database, f"{name}_{verb}_{seed}", name, **options)
        client = Client(database, queue)
        prepare(client, verb)
        before = payload_counts(client)
        assert sum(before.values()) == MESSAGES

        for _ in range(3 if long else 1):
            kill_at(client, verb, dice.randrange(MESSAGES), tmp_path)
            assert payload_counts(client) == before
        rerun = run(client, verb, tmp_path)
        assert rerun.wait(_DEADLINE_SECONDS) == 0

        assert payload_counts(client) == before
        audited = entries(client)
        assert sum(entry.done for entry in audited) == MESSAGES, "the audit has each message once"
        states = Counter(message.state for message in read_messages(client, limit=1000).messages)
        ready = verb in {"requeue", "release"}
        assert states == ({"ready": MESSAGES} if ready else {})


def prepare(client: Client, verb: str) -> None:
    """Put all messages into the state that the verb is for."""
    stored = client.push_many([f"message {n}" for n in range(MESSAGES)])
    assert None not in stored
    if verb == "purge":
        return
    popped = client.pop_many(MESSAGES, "worker")
    for message in popped if verb != "release" else ():
        assert client.fail(message, "boom") if verb == "requeue" else client.complete(message)


def run(client: Client, verb: str, state: Path) -> Forked:
    """The command line of the verb, in small batches."""
    more = ["--force"] if verb == "release" else []
    if verb == "release":
        more += ["--filter", "older=0s"]
    return Forked(
        [
            *(verb, client.queue.name, "--url", client.url, "--batch", "4"),
            *("--yes", client.queue.name, *more),
        ],
        {"XDG_STATE_HOME": str(state), "PATH": "/usr/bin:/bin", "HOME": str(state)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def kill_at(client: Client, verb: str, done: int, state: Path) -> None:
    """Kill the action once about this many messages are done, unless it ends before."""
    already = sum(entry.done for entry in entries(client))
    process = run(client, verb, state)
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        if sum(entry.done for entry in entries(client)) - already >= done // 4 + 1:
            break
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    settle(client)


def settle(client: Client) -> None:
    """Wait until the server has noticed the lost client, whose last batch may still run."""

    def sessions_have_ended() -> bool:
        with client.database.transaction("look", read_only=True) as connection:
            return True not in owners.alive(connection, entries(client)).values()

    wait_until(sessions_have_ended, "the sessions of killed processes have ended")


def entries(client: Client) -> list[audit.Entry]:
    with client.database.transaction("read the audit", read_only=True) as connection:
        wanted = audit.EntryFilter(client.queue.schema, client.queue.name)
        return audit.entries(connection, wanted)


def payload_counts(client: Client) -> Counter[str]:
    """Payload -> how often it is in the queue or in its archive."""
    page = read_messages(client, limit=1000, payload_bytes=100)
    found = Counter(str(message.payload) for message in page.messages)
    dialect = client.database.product.dialect
    names = (client.queue.schema, f"{client.queue.name}_archive")
    table = ".".join(sql.quote_identifier(dialect, name) for name in names)
    with client.database.transaction("read the archive", read_only=True) as connection:
        rows = connection.execute(text(f"SELECT payload FROM {table}")).scalars()
        return found + Counter(rows)
