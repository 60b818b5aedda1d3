"""Replay on a real server: each archived message once despite interruptions; artificial rows."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from console.actions import pause
from console.catalog import Queue
from console.catalog.audit import EntryFilter as Entries
from console.catalog.audit import entries
from console.errors import RefusedError, UsageError
from console.features.lake import leases
from console.features.lake import replay as job
from console.features.lake.lake import Lake
from console.features.lake.table import QueueArchive
from console.sql import templates
from tests.contract.client import Client
from tests.pipeline.conftest import NewQueue

FUTURE = datetime(2090, 1, 1, tzinfo=UTC)


def rows(*numbers: int, **more: Any) -> list[Any]:
    """Archived rows as the lake gives them, in their order."""
    return [
        {"message": f"a{n} 1", "payload": f"m{n}".encode(), "title": None, "due_us": None, **more}
        for n in numbers
    ]


def preview(queue: Queue, lake: Lake, count: int) -> job.ArchivedMessages:
    source = QueueArchive("elsewhere", "public", "old", lake.location, ("a.parquet",))
    return job.ArchivedMessages(queue, lake.location, source, ("error~x",), count, None, None)


def replayed(client: Client, lake: Lake, given: Any, batch: int = 3) -> job.Replayed:
    offered = preview(client.queue, lake, 7)
    return job.replay(client.database, offered, given, batch=batch)


def payloads(client: Client) -> list[Any]:
    return [message.payload for message in client.pop_many(100)]


class _KilledError(BaseException):
    """Caught by no code."""


def interrupted(given: list[Any], after: int) -> Iterator[Any]:
    yield from given[:after]
    raise _KilledError


@pytest.mark.parametrize("design", ["fifo", "ring", "claim", "status", "pending"])
def test_an_interrupted_replay_is_finished_without_loss_or_doubles(
    new_queue: NewQueue, lake: Lake, design: str
) -> None:
    client = new_queue(design)
    with pytest.raises(_KilledError):
        replayed(client, lake, interrupted(rows(*range(7)), 5))
    done = replayed(client, lake, rows(*range(7)))
    assert (done.pushed, done.before, done.full) == (4, 3, 0)
    again = replayed(client, lake, rows(*range(7)))
    assert (again.pushed, again.before) == (0, 7)
    assert payloads(client) == [f"m{n}" for n in range(7)]
    with client.database.transaction("look", read_only=True) as connection:
        wanted = Entries("public", client.queue.name, job.VERB)
        actions = entries(connection, wanted, 9)
    found = [
        (action.outcome, action.planned, action.selected, action.done, action.skipped)
        for action in actions
    ]
    assert found == [("done", 7, 7, 0, 7), ("done", 7, 7, 4, 3), ("failed", 7, 3, 3, 0)]
    assert actions[0].filters == "error~x"


def test_a_batch_that_fails_is_rolled_back_completely(
    new_queue: NewQueue, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = new_queue("fifo")

    def fails(*_: object) -> None:
        raise _KilledError

    with monkeypatch.context() as patch:
        patch.setattr(job._Replay, "_record", fails)  # after the push, before the commit
        with pytest.raises(_KilledError):
            replayed(client, lake, rows(1, 2))
    assert payloads(client) == []
    assert replayed(client, lake, rows(1, 2)).pushed == 2


def test_a_full_ring_gets_the_rest_when_there_is_room(new_queue: NewQueue, lake: Lake) -> None:
    client = new_queue("ring", size="4")
    done = replayed(client, lake, rows(*range(7)))
    assert (done.pushed, done.full, done.problem) == (4, 2, "full")
    taken = payloads(client)
    again = replayed(client, lake, rows(*range(7)))
    assert (again.pushed, again.before, again.full) == (3, 4, 0)
    assert taken + payloads(client) == [f"m{n}" for n in range(7)]


@pytest.mark.parametrize("design", ["fifo", "ring"])
def test_a_paused_queue_is_not_called_full(new_queue: NewQueue, lake: Lake, design: str) -> None:
    client = new_queue(design)
    pause.pause(client.database, client.queue, reason="bad release", seconds=60.0, push=True)
    done = replayed(client, lake, rows(1, 2))
    assert (done.pushed, done.full) == (0, 2)
    assert done.lines()[1].startswith("  the queue is paused, its pushes too, by ")


def test_titles_due_times_and_bytes_are_replayed(new_queue: NewQueue, lake: Lake) -> None:
    status, pending = new_queue("status"), new_queue("pending")
    replayed(status, lake, rows(1, 2, title="one") + rows(3, title="other"))
    with status.database.transaction("look", read_only=True) as connection:
        table = f'SELECT title FROM public."{status.queue.name}" ORDER BY id'
        found = connection.exec_driver_sql(table).scalars().all()
    assert found == ["one", "one", "other"]
    micros = int((FUTURE - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(microseconds=1))
    replayed(pending, lake, rows(4, due_us=micros) + rows(5))
    assert payloads(pending) == ["m5"]
    raw = new_queue("fifo", payload="bytes")
    replayed(raw, lake, rows(6, payload=b"\x00\xff"))
    assert payloads(raw) == [b"\x00\xff"]


def test_the_same_message_of_another_lake_counts_as_another(
    new_queue: NewQueue, lake: Lake, tmp_path_factory: pytest.TempPathFactory
) -> None:
    client = new_queue("fifo")
    replayed(client, lake, rows(1))
    other = Lake(tmp_path_factory.mktemp("other"))
    assert replayed(client, other, rows(1)).pushed == 1


def test_a_second_replay_at_the_same_time_is_refused(new_queue: NewQueue, lake: Lake) -> None:
    client = new_queue("fifo")
    name = leases.lease_name("replay", client.queue)
    with (
        leases.held(client.database, name, RefusedError("never")),
        pytest.raises(RefusedError, match="running"),
    ):
        replayed(client, lake, rows(1))
    assert replayed(client, lake, rows(1)).pushed == 1


def test_a_message_that_the_lake_has_twice_is_replayed_once(
    new_queue: NewQueue, lake: Lake
) -> None:
    """In one batch, and in several."""
    client = new_queue("fifo")
    done = replayed(client, lake, rows(1, 2, 1, 1, 3, 2))
    assert (done.pushed, done.before) == (3, 3)
    assert payloads(client) == ["m1", "m2", "m3"]


def test_payloads_are_replayed_only_into_queues_that_can_hold_them(new_queue: NewQueue) -> None:
    text, raw = new_queue("fifo"), new_queue("fifo", "raw ", payload="bytes")
    for kind, queue, fits in (
        ("bytes", text, False),
        ("json", text, True),
        ("text", raw, True),
        ("bytes", raw, True),
    ):
        job.require_target(queue.queue)
        if fits:
            job._require_kinds(queue.queue, [kind])
        else:
            with pytest.raises(UsageError, match="keeps text"):
                job._require_kinds(queue.queue, [kind])


def test_a_replay_has_these_statements_and_no_others() -> None:
    names = ("has_list", "create_list", "replayed", "record_replayed", "push")
    assert tuple(templates.statements("postgresql", "replay")) == names
