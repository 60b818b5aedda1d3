"""What is asked of a queue's messages, as SQL: put together for every walk, without a server."""

import re

import pytest

from console.catalog import Queue
from console.engines import PRODUCTS, Product
from console.monitor.scan_query import scope_of
from tests.contract.variants import ALL, DEFAULTS, Variant
from tests.statements import BIND, adopted, scan_requests, sources, texts
from tests.statements import CONDITIONS_OF_SCANS as CONDITIONS

BOUND = {
    *("look", "n", "after_id", "after_time", "first", "last", "first_slot", "last_slot"),
    *("payload_length", "error_length", "id", "errors", "claimed_by", "payload_equals", "moment"),
    *("older", "older_s", "older_us", "newer", "newer_s", "newer_us", "least"),
    *(f"payload_value_{number}" for number in range(1, 5)),
}
ENGINES = sorted(PRODUCTS)
LITERAL = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"")


@pytest.mark.parametrize("engine", ENGINES)
def test_every_condition_is_known_and_every_known_one_is_given(engine: str) -> None:
    """A misspelt condition would silently leave its lines out for ever."""
    met: dict[str, set[str]] = {name: set() for name in CONDITIONS}
    product = PRODUCTS[engine]
    installed = (v.queue("s", "q", engine) for v in ALL if engine in v.engines)
    for queue in (*installed, *adopted(product)):
        for source in sources(product, queue):
            own = queue.scope(product).options
            for ask in scan_requests(source):
                options = scope_of(source, ask).options
                given = {
                    name: options[name] for name in options.keys() - (own.keys() - {"payload"})
                }
                del given["payload"]
                assert given.keys() == CONDITIONS.keys()
                for name, value in given.items():
                    met[name].add(value)
    expected = {name: set(values) for name, values in CONDITIONS.items()}
    # Two filters on payloads are enough to see that they are numbered.
    expected |= {"by_payload_3": {"no"}, "by_payload_4": {"no"}}
    assert met == expected


def check(product: Product, queue: Queue, *, everything: bool) -> None:
    found = dict(texts(product, queue, everything=everything))
    assert found
    for where, text in found.items():
        assert not re.search(r"\{\w+\}|-- (when|end)\b", text), where
        plain = LITERAL.sub("''", text)
        assert set(BIND.findall(plain)) <= BOUND, where
        assert not re.search(r"\bOFFSET (?!0\b)|\bSELECT \*|\w\.\*", plain), where
        # At most one bound on what is read, one on what comes back.
        assert (
            len(re.findall(r"(?:LIMIT|TOP \()\s*:(?:look|n)\b", plain))
            == text.count("common.matching") + 1
        ), where


@pytest.mark.long
@pytest.mark.thinned(3)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("variant", ALL, ids=str)
def test_of_an_installed_queue(engine: str, variant: Variant, long: bool) -> None:
    if engine in variant.engines:
        check(PRODUCTS[engine], variant.queue("s", "q", engine), everything=long)


@pytest.mark.long
@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    ("engine", "number"), [(e, n) for e in ENGINES for n, _ in enumerate(adopted(PRODUCTS[e]))]
)
def test_of_an_adopted_table(engine: str, number: int, long: bool) -> None:
    """Each is there twice, with all roles and with few: the short tier takes one of the two."""
    check(PRODUCTS[engine], list(adopted(PRODUCTS[engine]))[number], everything=long)


@pytest.mark.long
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("variant", DEFAULTS, ids=str)
def test_a_payload_is_not_selected_unless_it_is_asked_for(engine: str, variant: Variant) -> None:
    """Only its size, and of what lies in a table of its own not even that."""
    if engine not in variant.engines:
        return
    queue = variant.queue("s", "q", engine)
    unasked = [
        text for where, text in texts(PRODUCTS[engine], queue) if "payload_length=None" in where
    ]
    assert unasked
    for text in unasked:
        assert ":payload_length" not in text
        uses = re.findall(r"\w*\(?(?:CAST\()?l\.payload\b", text)
        assert all(re.match(r"octet_length|DATALENGTH|CAST\(l", use) for use in uses), uses
        assert "q_data" not in text
