"""The SQL that reads a queue's messages: for every scan, without a server."""

import re
from itertools import product as product_of

import pytest

from console import sql
from console.catalog import Queue
from console.engines import PRODUCTS, Product
from console.monitor.scan_query import scope_of
from tests.contract.variants import ALL, DEFAULTS, Variant
from tests.tools.statements import BIND, adopted, for_statement, scan_requests, sources, texts
from tests.tools.statements import CONDITIONS_OF_SCANS as CONDITIONS

BOUND = {
    *("read_limit", "n", "after_id", "after_time", "first", "last", "first_slot", "last_slot"),
    *("payload_length", "error_length", "id", "errors", "claimed_by", "payload_equals", "moment"),
    *("older", "older_s", "older_us", "newer", "newer_s", "newer_us", "least", "ahead", "state"),
    *("due_time", "stuck_after", "groups", "group_limit"),
    *(f"payload_value_{number}" for number in range(1, 5)),
}
ENGINES = sorted(PRODUCTS)
LITERAL = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"")


@pytest.mark.parametrize("engine", ENGINES)
def test_every_condition_is_known_and_takes_each_of_its_values(engine: str) -> None:
    """A misspelt condition would silently omit its lines."""
    observed: dict[str, set[str]] = {name: set() for name in CONDITIONS}
    product = PRODUCTS[engine]
    installed = (v.queue("s", "q", engine) for v in ALL if engine in v.engines)
    for queue in (*installed, *adopted(product)):
        for source in sources(product, queue):
            own = queue.scope(product).options
            lasts = ("matching", "counted", "chosen")
            for request, last in product_of(scan_requests(source), lasts):
                options = scope_of(source, for_statement(request, queue, last)).options
                given = {
                    name: options[name] for name in options.keys() - (own.keys() - {"payload"})
                }
                del given["payload"]
                assert given.keys() == CONDITIONS.keys()
                for name, value in given.items():
                    observed[name].add(value)
    expected = {name: set(values) for name, values in CONDITIONS.items()}
    # Two payload filters are enough to test their numbering.
    expected |= {"by_payload_3": {"no"}, "by_payload_4": {"no"}}
    if not sql.has(product, "catalog.key_type"):
        expected |= {"own_operators": {"no"}}
    if product.time_indexes_have_keys:
        expected["start"] -= {"same_time"}
    if not product.narrow_types:
        expected |= {"narrow": {"no"}}
    assert observed == expected


def check(product: Product, queue: Queue, *, everything: bool) -> None:
    found = dict(texts(product, queue, everything=everything))
    assert found
    for where, text in found.items():
        assert not re.search(r"\{\w+\}|-- (when|end)\b", text), where
        plain = LITERAL.sub("''", text)
        assert set(BIND.findall(plain)) <= BOUND, where
        # `m` is the table of messages, which may have any columns.
        assert not re.search(r"\bOFFSET (?!0\b)|\bSELECT \*|\bm\.\*", plain), where
        # At most one limit of rows read, one of rows returned.
        returned = text.count("common.matching") + text.count("common.counted")
        limits = re.findall(r"(?:LIMIT|TOP \()\s*:(?:read_limit|n)\b", plain)
        assert 1 <= len(limits) <= returned + 1, where


@pytest.mark.slow
@pytest.mark.thinned(3)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("variant", ALL, ids=str)
def test_statements_of_an_installed_queue_are_complete_and_bounded(
    engine: str, variant: Variant, long: bool
) -> None:
    if engine in variant.engines:
        check(PRODUCTS[engine], variant.queue("s", "q", engine), everything=long)


@pytest.mark.slow
@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    ("engine", "number"), [(e, n) for e in ENGINES for n, _ in enumerate(adopted(PRODUCTS[e]))]
)
def test_statements_of_an_adopted_table_are_complete_and_bounded(
    engine: str, number: int, long: bool
) -> None:
    """Each occurs twice, with all roles and with few: the slow tier runs one of them."""
    check(PRODUCTS[engine], list(adopted(PRODUCTS[engine]))[number], everything=long)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("variant", DEFAULTS, ids=str)
def test_a_payload_is_not_selected_unless_requested(engine: str, variant: Variant) -> None:
    """Only its size, and not even that if it is in a table of its own, unless to be locked."""
    if engine not in variant.engines:
        return
    queue = variant.queue("s", "q", engine)
    without_payload = [
        text
        for where, text in texts(PRODUCTS[engine], queue)
        if "payload_length=None" in where and not where.endswith("lock_next")
    ]
    assert without_payload
    for text in without_payload:
        assert ":payload_length" not in text
        uses = re.findall(r"\w*\(?(?:CAST\()?l\.payload\b", text)
        assert all(re.match(r"octet_length|DATALENGTH|CAST\(l", use) for use in uses), uses
        assert "q_data" not in text
