"""Listing messages, on every engine: each once, in the queue's order, with its real fields."""

import json
import re
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest

from console.actions import pop
from console.designs import Flow, Order
from console.monitor.errors import error_groups
from console.monitor.filters import NOTHING
from console.monitor.messages import message, read_page
from tests.contract.client import Client
from tests.contract.conftest import Use
from tests.contract.filled import ERROR, all_pages, can_be_paged, fill, ids_of, read_messages
from tests.contract.variants import (
    BEHAVIOURS,
    BEHAVIOURS_AND_PAYLOADS,
    CORE,
    DEFAULTS,
    SMALL_RING,
    Variant,
    default,
    long_except,
)

pytestmark = pytest.mark.thinned(3)

WITH_CLAIMS = [variant for variant in BEHAVIOURS if variant.finishes]


@pytest.mark.thinned(3, payload=False)
@pytest.mark.parametrize("variant", long_except(BEHAVIOURS_AND_PAYLOADS), ids=str)
def test_pages_show_every_message_once_and_each_is_found_by_its_key(client: Client) -> None:
    filled = fill(client)
    database, queue = client.database, client.queue
    full_page = read_messages(client, limit=100)
    assert (full_page.next, full_page.complete) == (None, True)
    assert Counter(ids_of(full_page)) == Counter(filled.all)
    for state, ids in filled.ids.items():
        page = read_messages(client, f"state={state}")
        assert sorted(ids_of(page)) == sorted(ids)
        assert {one.state for one in page.messages} == {state}
        if state in {"error", "done"}:
            assert ids_of(page) == ids[::-1], "what happened last is first"
        if state == "claimed":
            times = [one.claimed_at for one in page.messages if one.claimed_at is not None]
            assert times == sorted(times), "the oldest claim is first"
            assert len(times) == len(ids)
    if not can_be_paged(client):
        return
    keys = [one.key for one in full_page.messages]
    for limit in (1, 5, 11):
        assert [all_page.key for all_page in all_pages(client, limit=limit)] == keys
    backwards = all_pages(client, limit=5, reverse=True)
    for state in filled.ids:
        forwards = [one.id for one in full_page.messages if one.state == state]
        assert [backward.id for backward in backwards if backward.state == state] == forwards[::-1]
    for shown in full_page.messages:
        found = message(database, queue, shown.key, payload_bytes=100_000)
        assert found is not None
        assert (found.id, found.state, found.error) == (shown.id, shown.state, shown.error)
        assert found.payload is not None
    ready = [shown.key for shown in full_page.messages if shown.state == "ready"]
    client.drain()
    assert [message(database, queue, key) for key in ready] == [None] * len(ready)


@pytest.mark.parametrize("variant", long_except(CORE, BEHAVIOURS), ids=str)
def test_a_message_has_the_fields_of_its_state(client: Client) -> None:
    fill(client)
    queue = client.queue
    for shown in read_messages(client, limit=100).messages:
        kept = queue.design.keeps_row or shown.state in {"claimed", "error"}
        assert shown.pushed_at is not None
        assert abs(datetime.now(UTC) - shown.pushed_at) < timedelta(minutes=10)
        assert shown.age_seconds is not None
        assert -0.01 <= shown.age_seconds < 600
        assert shown.attempts == ((shown.state != "ready") if kept else None)
        assert (shown.claimed_at is not None) == (shown.state in {"claimed", "error", "done"})
        assert (shown.claimed_by is not None) == (shown.claimed_at is not None)
        if shown.claimed_by is not None:
            assert shown.claimed_by.endswith(" consumer=worker-1")
        assert (shown.done_at is not None) == (shown.state in {"error", "done"})
        assert shown.error == (ERROR if shown.state == "error" else None)
        assert not shown.error_cut
        assert (shown.title is not None) == (queue.design.name in {"status", "split"})
        assert (shown.due_at is not None) == (queue.design.order is Order.DUE)
        in_a_slot = queue.design.flow is Flow.NUMBERS and shown.state == "ready"
        assert (shown.slot is not None) == (shown.number is not None) == in_a_slot
        assert (shown.payload, shown.payload_cut) == (None, False)
        if in_a_slot:
            assert str(shown.number) == shown.id
            assert shown.slot == (shown.number or 0) % int(SMALL_RING)


@pytest.mark.parametrize("variant", long_except(CORE), ids=str)
def test_payloads_can_be_cut_and_complete_ones_equal_what_pops_return(
    client: Client, variant: Variant
) -> None:
    fill(client)
    ready = read_messages(client, "state=ready", payload_bytes=100_000).messages
    assert not any(message.payload_cut for message in ready)
    for shown in ready:
        assert shown.payload is not None
        assert shown.payload_bytes == client.size_of(shown.payload)
    for cut in read_messages(client, payload_bytes=7).messages:  # in the middle of an ü
        prefix = cut.payload if isinstance(cut.payload, bytes) else str(cut.payload).encode()
        complete = read_messages(client, f"id={cut.id}", payload_bytes=100_000).messages[0].payload
        data = complete if isinstance(complete, bytes) else str(complete).encode()
        assert data.startswith(prefix)
        assert len(data[:7]) - 3 <= len(prefix) <= 7
        assert cut.payload_cut == (len(data) > 7)
        assert cut.payload_bytes is not None
    shown_first = [(message.id, message.payload) for message in ready]
    popped = [(taken.id, taken.payload) for taken in client.drain()]
    assert len(popped) >= 5
    if variant.order is Order.NONE:
        shown_first, popped = sorted(shown_first, key=str), sorted(popped, key=str)
    assert shown_first == popped


@pytest.mark.long
def test_sizes_are_shown_without_the_payload(use: Use) -> None:
    for payload in ("text", "bytes"):
        for of in ("fifo", "heap", "claim", "status", "ring"):
            client = use(default(of, payload=payload))
            client.push(client.payload(2))
            (shown,) = read_messages(client).messages
            assert shown.payload_bytes == client.size_of(client.payload(2))


@pytest.mark.parametrize("variant", [v for v in DEFAULTS if v.design.flow is Flow.NUMBERS], ids=str)
def test_a_ring_lists_what_pops_will_return_after_laps_and_lost_numbers(
    use: Use, variant: Variant
) -> None:
    client = use(Variant(variant.design, {**variant.given, "size": "10"}))
    for _ in range(4):
        client.push_many(client.payloads(*range(7)))
        client.pop_many(7)
    pushed = [str(id_) for id_ in client.push_many(client.payloads(*range(8)))]
    with suppress(ZeroDivisionError), client.database.transaction("pop and lose two") as lost:
        pop.pop_many(lost, client.queue, 2)
        raise ZeroDivisionError
    # Two numbers are consumed, their messages orphans: no pop will fetch them.
    assert ids_of(read_messages(client)) == pushed[2:]
    assert [message.id for message in all_pages(client, limit=1)] == pushed[2:]
    assert [message.id for message in all_pages(client, limit=4, reverse=True)] == pushed[:1:-1]
    assert [taken.id for taken in client.drain()] == pushed[2:]
    assert read_messages(client).messages == ()


@pytest.mark.parametrize("variant", WITH_CLAIMS, ids=str)
def test_masks_apply_to_payloads_errors_and_error_groups(use: Use, variant: Variant) -> None:
    secret = "4111 1111 1111 1111"
    masks = (re.compile(r"\d{4}( \d{4}){3}"),)
    client = use(variant)
    body = f"card {secret} of somebody"
    client.push(json.dumps(body) if variant.payload == "json" else body)
    (taken,) = client.pop_many(1)
    assert client.fail(taken, f"card {secret} refused")
    database, queue = client.database, client.queue
    for size in (6, 9, 15, 1000):
        (shown,) = read_page(database, queue, NOTHING, payload_bytes=size, masks=masks).messages
        assert "4111" not in f"{shown.payload!r} {shown.error}"
        assert shown.error == "card *** refused"
    (group,) = error_groups(database, queue, masks=masks).groups
    assert (group.wording, group.sample) == ("card *** refused", "card *** refused")


def test_a_long_error_is_cut_in_a_list_and_complete_by_id(use: Use) -> None:
    client = use(default("status"))
    client.push(client.payload(1))
    (taken,) = client.pop_many(1)
    assert client.fail(taken, "e" * 5000)
    (shown,) = read_messages(client).messages
    assert (shown.error, shown.error_cut) == ("e" * 1000, True)
    (by_id,) = read_messages(client, f"id={taken.id}").messages
    assert (by_id.error, by_id.error_cut) == ("e" * 5000, False)
    by_key = message(client.database, client.queue, shown.key)
    assert by_key is not None
    assert by_key.error == "e" * 5000
