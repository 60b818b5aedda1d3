"""Any payload is popped as it was pushed, or refused completely with a clear error."""

import json
import random
from decimal import Decimal
from typing import Any

import pytest

from console.actions.push import Payload
from console.errors import UsageError
from tests.contract.client import Client
from tests.contract.conftest import Use
from tests.contract.variants import DEFAULTS, Variant

pytestmark = pytest.mark.thinned(3)

MEGABYTE = 1_000_000
LARGE_NUMBER = "123456789012345678901234567890.12345678901234567890"

TEXTS = [
    "",
    " ",
    "trailing blanks   ",
    "\t tabs and\r\nlines\n\n",
    "\N{GRINNING FACE} \N{FAMILY}\N{ZERO WIDTH JOINER}\N{ROCKET}",
    "e\N{COMBINING ACUTE ACCENT} \N{LATIN SMALL LETTER E WITH ACUTE}",
    "\N{HEBREW LETTER ALEF}\N{RIGHT-TO-LEFT MARK}\N{ARABIC LETTER BEH}",
    "\ufeffmark",
    "\x01\x1f\x7f\u0085\u2028\uffff\U0010ffff",
    '\'; DROP TABLE x; -- "quoted" $$ $dbq$ \\x41 \\ %s %% :name {queue} NULL',
    "{}",
    '{"a", NULL, b}',
]

JSONS = [
    "null",
    "true",
    '""',
    '" trailing  "',
    "[]",
    "{}",
    f'{{"amount": {LARGE_NUMBER}}}',
    "[-0.10, 1.10, 100000000000000000000000000000000000001]",
    '"\N{GRINNING FACE} e\N{COMBINING ACUTE ACCENT} \\" \\\\ \\n"',
    json.dumps({"deep": [[[[{"a": None, "B": [1, 2.50, "x"]}]]]], "": " "}),
    "[" + "1, " * 40 + "1]",
]

BYTES = [b"", b"\0", bytes(range(256)), b"\\x41", b"\xff\xfe\x00 ", "\N{SNOWMAN}".encode()]

PAYLOADS: dict[str, list[Payload]] = {"text": [*TEXTS], "json": [*JSONS], "bytes": [*BYTES]}

EACH_PAYLOAD_TYPE = [
    Variant(variant.design, {**variant.given, "payload": payload})
    for variant in DEFAULTS
    for payload in variant.design.option("payload").choices
]

LIMIT = 200
LIMITED = [Variant(v.design, {**v.given, "max_bytes": str(LIMIT)}) for v in EACH_PAYLOAD_TYPE]
UNLIMITED = [v for v in EACH_PAYLOAD_TYPE if v.limit is None]


def value(payload: Payload, kind: str) -> object:
    """JSON is compared by value, digit for digit, everything else exactly."""
    if kind == "json":
        assert isinstance(payload, str)
        return json.loads(payload, parse_float=Decimal, parse_int=Decimal)
    return payload


def of_length(client: Client, length: int) -> Payload:
    """A payload of this many bytes, incompressible and with multibyte characters.

    Where each character takes two bytes, an odd length becomes the next even one.
    """
    random_numbers = random.Random(length)
    kind = client.queue.options["payload"]
    if kind == "bytes":
        return random_numbers.randbytes(length)
    text = "".join(chr(random_numbers.randrange(0xC0, 0x250)) for _ in range((length - 4) // 2))
    fits = json.dumps(text, ensure_ascii=False) if kind == "json" else text
    while client.size_of(fits) < length:
        text += "x"
        fits = json.dumps(text, ensure_ascii=False) if kind == "json" else text
    return fits


def depth_and_numbers(client: Client) -> tuple[int | None, int | None, int | None]:
    """The figures that change if a message is stored or a number consumed."""
    status = client.status()
    return status.ready, status.next_push, status.next_pop


@pytest.mark.parametrize("many", [False, True], ids=["push", "push_many"])
@pytest.mark.parametrize("variant", EACH_PAYLOAD_TYPE, ids=str)
def test_payloads_are_popped_as_they_were_pushed(
    client: Client, variant: Variant, many: bool
) -> None:
    kind = variant.payload
    sent = PAYLOADS[kind]

    ids = client.push_many(sent) if many else [client.push(payload) for payload in sent]
    if many:
        popped = client.drain()
    else:
        popped = [message for message in (client.pop() for _ in sent) if message is not None]

    received = {message.id: message.payload for message in popped}
    assert len(received) == len(sent)
    for pushed, payload in zip(ids, sent, strict=True):
        assert pushed is not None
        assert value(received[pushed], kind) == value(payload, kind)
    if kind == "json":
        assert any(LARGE_NUMBER in str(payload) for payload in received.values())


@pytest.mark.long
@pytest.mark.thinned(3)
@pytest.mark.parametrize("variant", UNLIMITED, ids=str)
def test_a_payload_of_a_megabyte_is_popped_unchanged(client: Client) -> None:
    large = of_length(client, MEGABYTE)
    assert client.size_of(large) == MEGABYTE
    client.push(large)
    client.push_many([large, large])

    popped = client.drain(2)

    assert [message.payload for message in popped] == [large] * 3


@pytest.mark.parametrize("variant", LIMITED, ids=str)
def test_the_size_limit_counts_bytes_and_is_inclusive(client: Client) -> None:
    fits = of_length(client, LIMIT)
    too_long = of_length(client, LIMIT + 1)
    assert client.size_of(fits) == LIMIT < client.size_of(too_long) <= LIMIT + 2
    empty = depth_and_numbers(client)

    with pytest.raises(UsageError, match=f"over the limit of {LIMIT} bytes"):
        client.push(too_long)
    with pytest.raises(UsageError, match=f"over the limit of {LIMIT} bytes"):
        client.push_many([fits, too_long, fits])
    assert depth_and_numbers(client) == empty
    assert client.push(fits) is not None
    assert None not in client.push_many([fits, fits])
    assert [message.payload for message in client.drain()] == [fits] * 3


@pytest.mark.long
@pytest.mark.parametrize("variant", [v for v in DEFAULTS if v.limit], ids=str)
def test_the_default_size_limit_of_a_design_is_enforced(client: Client, variant: Variant) -> None:
    limit = variant.limit or 0
    with pytest.raises(UsageError, match="over the limit"):
        client.push(of_length(client, limit + 1))
    fits = of_length(client, limit)
    client.push(fits)
    assert [message.payload for message in client.drain()] == [fits]


RINGS = [v for v in EACH_PAYLOAD_TYPE if "size" in v.options]


@pytest.mark.parametrize("variant", RINGS, ids=str)
def test_a_ring_with_the_widest_slots_works_for_several_laps(use: Use, variant: Variant) -> None:
    widest = variant.design.option("max_bytes").maximum
    client = use(Variant(variant.design, {**variant.given, "max_bytes": str(widest), "size": "5"}))
    full = of_length(client, widest)
    many_small: dict[str, Payload] = {"json": json.dumps([1] * (widest // 6))}
    for payload in (full, many_small.get(variant.payload, full)) * 2:
        assert None not in client.push_many([payload] * 5)
        assert client.push(payload) is None
        assert [message.payload for message in client.drain(2)] == [payload] * 5


NUL: dict[str, list[str]] = {"text": ["\0", "a\0b"], "json": ['"\0"', '"\\u0000"']}


INVALID = ("", " ", "{", "{'a': 1}", '{"a": 01}', "NaN", '"x" "y"')


@pytest.mark.parametrize("variant", EACH_PAYLOAD_TYPE, ids=str)
def test_an_invalid_payload_is_refused_with_its_whole_batch(
    client: Client, variant: Variant
) -> None:
    refused: list[tuple[Any, str]] = [(None, "payload")]
    if variant.payload == "json":
        refused += [(payload, "Could not push") for payload in INVALID]
    if variant.payload != "bytes":
        refused.append(('"\ud83d"', "not valid Unicode"))
        if client.database.product.name == "postgresql":
            refused += [(payload, "Could not push") for payload in NUL[variant.payload]]
    empty = depth_and_numbers(client)
    for payload, words in refused:
        with pytest.raises(UsageError, match=words) as caught:
            client.push(payload)
        assert caught.value.next_step or payload is None
        assert "payload" in caught.value.next_step or payload not in INVALID
        with pytest.raises(UsageError, match=words):
            client.push_many([client.payload(0), payload, client.payload(1)])
        assert depth_and_numbers(client) == empty
