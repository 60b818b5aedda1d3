"""Filters, on every engine: only matches are returned, with bounded reading, for any value."""

import json
import re
from collections import Counter
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from console.engines import Database
from console.errors import UsageError
from console.monitor import scan_query
from console.monitor.filters import FORMS, parse
from console.monitor.messages import message
from console.monitor.scans import By, scans_for
from tests.contract.client import Client
from tests.contract.filled import Filled, all_pages, can_be_paged, fill, ids_of, read_messages
from tests.contract.installs import installed
from tests.contract.variants import ALL, BEHAVIOURS, DEFAULTS, Variant, default

pytestmark = pytest.mark.thinned(3)


@pytest.mark.parametrize("variant", BEHAVIOURS, ids=str)
def test_filters_match_the_right_messages(client: Client) -> None:
    filled = fill(client)
    everything = Counter(filled.all)

    def found(*words: str) -> Counter[str]:
        page = read_messages(client, *words, limit=100)
        assert (page.next, page.complete) == (None, True)
        return Counter(ids_of(page))

    for id_ in filled.all[::3]:
        assert found(f"id={id_}") == Counter([id_])
        state = next(state for state, ids in filled.ids.items() if id_ in ids)
        assert found(f"id={id_}", f"state={state}") == Counter([id_])
    assert found("older=0s", "newer=1h") == everything
    assert found("older=1h") == found("older=1h", "state=ready") == Counter()
    assert found("newer=10m", "state=ready") == Counter(filled.ids["ready"])
    if not client.queue.finishes:
        return
    errors, claims = Counter(filled.ids["error"]), Counter(filled.ids["claimed"])
    taken = everything - Counter(filled.ids["ready"])
    assert found("error~BOOM") == found("error~for order", "error~second line") == errors
    assert found("error~boom", "error~other") == found("error~%") == Counter()
    assert found("claimed_by=worker-1") == taken
    assert found("claimed_by=worker-1", "state=claimed", "newer=1h") == claims
    assert found("claimed_by=worker") == found("claimed_by=worker-11") == Counter()
    owner = read_messages(client, "state=claimed").messages[0].claimed_by or ""
    session, _, rest = owner.partition(" ")
    assert rest
    assert found(f"claimed_by={owner}", "state=claimed") == claims
    assert found(f"claimed_by={session}") == taken
    assert found(f"claimed_by={session[:-1]}") == Counter()


JSON_VARIANTS = [v for v in ALL if v.payload == "json"]
DOCUMENT = {
    "order": {"id": 42, "big": 12345678901234567890, "price": 1, "paid": True, "note": None},
    "items": [{"sku": "A1"}, {"sku": 'it\'s "quoted" é 😀'}],
    "a.b": "dotted",
    "": "empty key",
    "text": "42",
}
MATCHES = {
    "payload.order.id=42": True,
    "payload.order.id=4": False,
    "payload.order.big=12345678901234567890": True,
    "payload.order.big=12345678901234567891": False,
    "payload.order.paid=true": True,
    "payload.order.note=null": False,
    "payload.text=42": True,
    "payload.text=42 ": False,
    "payload.items[0].sku=A1": True,
    "payload.items[0].sku=a1": False,
    "payload.items[1].sku=A1": False,
    'payload.items[1].sku=it\'s "quoted" é 😀': True,
    'payload."a.b"=dotted': True,
    "payload.a.b=dotted": False,
    "payload.nothing.at.all=x": False,
    "payload.order.id.deeper=42": False,
}


@pytest.mark.long
@pytest.mark.parametrize("variant", JSON_VARIANTS, ids=str)
def test_json_payloads_are_filtered_by_path(client: Client) -> None:
    documents = [json.dumps(DOCUMENT), "17", '"text"', "[1, [2]]", "null", '{"order": 5}']
    ids = [str(id_) for id_ in client.push_many(documents)]
    for word, expected in MATCHES.items():
        assert ids_of(read_messages(client, word)) == (ids[:1] if expected else []), word
    assert ids_of(read_messages(client, "payload[1][0]=2")) == [ids[3]]
    both = ("payload.order.id=42", "payload.text=42")
    assert ids_of(read_messages(client, *both)) == ids[:1]
    assert ids_of(read_messages(client, both[0], "payload.text=43")) == []


UNSUPPORTED = {
    "state=nowhere": "states of the design",
    "keep-newest=5": "does not apply to messages",
    "limit=5": "--limit",
}


@pytest.mark.parametrize("variant", DEFAULTS, ids=str)
def test_filters_that_a_queue_does_not_support_are_refused_with_a_reason(
    client: Client, variant: Variant
) -> None:
    unsupported = dict(UNSUPPORTED)
    if variant.payload != "json":
        unsupported["payload.a=1"] = "needs JSON"
    if not variant.finishes:
        unsupported |= {"error~x": "have no error", "claimed_by=x": "have no claimed_by"}
        unsupported["state=error"] = "no messages in a state"
    unsupported["id=x"] = "is not a key of the queue"
    for word, why in unsupported.items():
        with pytest.raises(UsageError) as refused:
            read_messages(client, word)
        assert why in str(refused.value), word
    for key in ("x", "ready,,x", "done,1,2,3"):
        with pytest.raises(UsageError):
            read_messages(client, after=key)
        with pytest.raises(UsageError):
            message(client.database, client.queue, key)


@pytest.mark.parametrize("variant", BEHAVIOURS, ids=str)
def test_a_filter_with_few_matches_stops_and_returns_where_to_continue(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call reads a limited part and the next continues there, until all is read."""
    fill(client, 40)
    if not can_be_paged(client):
        pytest.skip("a heap here has no keys")
    monkeypatch.setattr(scan_query, "READ_AT_ONCE", 3)
    monkeypatch.setattr(scan_query, "READ_MOST", 6)
    monkeypatch.setattr(scan_query, "PAGES_AT_ONCE", 1)
    monkeypatch.setattr(scan_query, "PAGES_MOST", 1)
    last = read_messages(client, "state=ready", reverse=True, limit=1).messages[0]
    for word in (f"id={last.id}", "older=1h"):
        expected = [last.id] if word.startswith("id=") else []
        page, calls, found = read_messages(client, word), 1, []
        while True:
            found += ids_of(page)
            assert page.complete == (page.next is None)
            if page.next is None:
                break
            calls += 1
            page = read_messages(client, word, after=page.next.text)
        assert found == expected
        scans = scans_for(client.queue, parse([word]))
        by_row = not any(scan.by_age or scan.by is By.LOCATION for scan in scans)
        if word == "older=1h" and by_row:
            assert calls > 3
    some = all_pages(client, "newer=1h", limit=7)
    assert Counter(message.id for message in some) == Counter(
        message.id for message in all_pages(client, limit=100)
    )


ODD = st.text(max_size=20) | st.sampled_from(
    [
        "'",
        '"',
        "''; DROP TABLE x; --",
        "%",
        "_",
        "\\",
        "{queue}",
        ":look",
        "$1",
        "\x01",
        "é😀",
        "[",
        "]",
    ]
)


@pytest.fixture(scope="module")
def odd(database: Database) -> Filled:
    return fill(installed(database, default("claim", payload="json"), "odd 'filters' :x %s {y}"))


@pytest.mark.long
@settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(form=st.sampled_from(FORMS), value=ODD, key=ODD)
def test_odd_values_are_only_values(odd: Filled, form: str, value: str, key: str) -> None:
    name, sign, _ = re.split("([=~])", form)
    word = f"{name}{sign}{value}"
    if name == "payload.PATH":
        word = f"payload.{json.dumps(key)}={value}"
    with suppress(UsageError):
        assert read_messages(odd.client, word).messages == ()
    with suppress(UsageError):
        read_messages(odd.client, after=f"ready,{value},{key}")
    assert len(read_messages(odd.client).messages) == len(odd.all)


@pytest.mark.long
@settings(
    deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(text=ODD.filter(lambda text: text.strip() and "\0" not in text))
def test_odd_values_are_found(database: Database, odd: Filled, text: str) -> None:
    word = f"payload.key.{json.dumps(text)}[0]={text}"
    try:
        before = ids_of(read_messages(odd.client, word))  # two examples may have the same text
    except UsageError:
        return
    pushed = odd.client.push(json.dumps({"key": {text: [text]}}))
    assert sorted(ids_of(read_messages(odd.client, word))) == sorted([*before, str(pushed)])
    (taken,) = (m for m in odd.client.drain() if m.id == pushed)
    assert odd.client.fail(taken, text)
    assert pushed in ids_of(read_messages(odd.client, f"error~{text}"))
