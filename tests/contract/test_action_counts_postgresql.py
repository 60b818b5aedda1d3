"""The plan of an action counts on the server: the same as by reading the messages, at a cost that
grows with the chunks and not with the messages."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import event

from console.actions import execute
from console.actions.archive import Purge
from console.actions.message_action import MessageAction, select
from console.actions.rows import QueueSelection
from console.actions.selected import SelectedMessages
from console.designs import DESIGNS
from console.engines import Database
from console.monitor import message_count
from console.monitor.filters import parse
from tests.contract.client import Client
from tests.contract.conftest import Use
from tests.contract.filled import fill as fill_by_calls
from tests.contract.message_actions import source_of
from tests.contract.variants import DEFAULTS, Variant
from tests.servers import connect
from tests.tools.filling import fill

VARIANTS = [
    *DEFAULTS,
    Variant(DESIGNS["ring"], {"in_hand": "on", "size": "100"}),
    Variant(DESIGNS["claim"], {"payload": "json"}),
    Variant(DESIGNS["fifo"], {"payload": "bytes"}),
]
FILTERS = ("", "older=0s", "newer=1h", "older=1h", "state=error", "error~boom state=error")


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_what_is_counted_is_what_would_be_read(
    use_postgresql: Use, monkeypatch: pytest.MonkeyPatch, variant: Variant
) -> None:
    """In chunks of a few rows or one page, whatever is in the way of the filters."""
    monkeypatch.setattr(message_count, "ROWS_AT_ONCE", 4)
    monkeypatch.setattr(message_count, "PAGES_AT_ONCE", 1)
    client = use_postgresql(variant)
    fill_by_calls(client, 40)
    action = Purge(source_of(client), permanently=True)
    compared = 0
    for words in FILTERS:
        filters = parse(words.split())
        if filters.state is not None and filters.state not in action.allowed:
            continue
        counted = select(client.database, action, filters)
        with monkeypatch.context() as reading:
            reading.setattr(QueueSelection, "countable", False)
            read = select(client.database, action, filters)
        assert without_times(counted) == without_times(read), words
        for name in ("oldest_seconds", "newest_seconds"):
            since, since_read = moment(counted, name), moment(read, name)
            assert (since is None) == (since_read is None), words
            if since and since_read:
                assert abs(since - since_read) < timedelta(milliseconds=1), words
        compared += counted.count > 3
    assert compared


def without_times(selected: SelectedMessages) -> SelectedMessages:
    """Two plans have different cut-offs, and ages by these."""
    return replace(
        selected,
        sample=tuple(replace(message, age_seconds=None) for message in selected.sample),
        cutoff=datetime.min.replace(tzinfo=UTC),
        oldest_seconds=None,
        newest_seconds=None,
    )


def moment(selected: SelectedMessages, name: str) -> datetime | None:
    age = getattr(selected, name)
    return None if age is None else selected.cutoff - timedelta(seconds=age)


@contextmanager
def counting(database: Database) -> Iterator[list[int]]:
    """The rows that each statement returns."""
    returned: list[int] = []

    def after(_conn: Any, cursor: Any, *_: Any) -> None:
        returned.append(max(0, cursor.rowcount))

    event.listen(database._engine, "after_cursor_execute", after)
    try:
        yield returned
    finally:
        event.remove(database._engine, "after_cursor_execute", after)


def cost_of(client: Client, action: MessageAction, depth: int) -> tuple[int, int]:
    """Statements, and rows fetched, by a plan."""
    with counting(client.database) as returned:
        plan = execute.plan(client.database, action)
    assert plan.count == depth
    return len(returned), sum(returned)


DEEP, SHALLOW = 100_000, 1_000


@pytest.mark.parametrize("design", ["fifo", "claim", "heap", "ring"])
def test_a_plan_costs_statements_by_the_chunk_and_reads_no_message_but_its_sample(
    use_postgresql: Use, design: str
) -> None:
    options = {"size": "200000", "max_bytes": "20"} if design == "ring" else {}
    costs = {}
    for depth in (SHALLOW, DEEP):
        client = use_postgresql(Variant(DESIGNS[design], options))
        with connect(client.url) as connection:
            fill(connection, client.queue, {"ready": depth})
        costs[depth] = cost_of(client, Purge(source_of(client), permanently=True), depth)
    statements, rows = (costs[DEEP][n] - costs[SHALLOW][n] for n in (0, 1))
    chunks = DEEP // message_count.ROWS_AT_ONCE
    # Beside each chunk: its extent, where chunks have ends, and what a transaction begins with.
    assert statements <= 5 * chunks
    assert rows <= 5 * chunks
    assert costs[SHALLOW][1] < 40
