"""How long a queue's name may be, and the names of its objects."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.catalog import Kind, Queue, installed_queue, object_names
from console.designs import DESIGNS, Design
from console.engines import PRODUCTS
from console.errors import UsageError

PAIRS = [
    (product, design)
    for product in PRODUCTS.values()
    for design in DESIGNS.values()
    if product.name in design.engines
]


def queue(design: Design, name: str, schema: str = "s") -> Queue:
    return installed_queue(schema, name, design, design.complete_options({}))


def test_the_longest_object_name_just_fits_at_the_limit() -> None:
    for product, design in PAIRS:
        limit, suffix = object_names.limit(product, design.name, "s")
        longest = queue(design, "x" * limit)
        names = object_names.of(product, longest)
        # The name of an object outside any schema begins with the schema's name.
        assert product.name_limit - max(map(product.name_length, names)) in {0, len("s.")}
        assert longest.name + suffix in names
        object_names.check(product, longest)
        complaint = rf"{limit + 1} {product.name_unit}, at most {limit}"
        with pytest.raises(UsageError, match=complaint) as refused:
            object_names.check(product, queue(design, "x" * (limit + 1)))
        assert f"<queue>{suffix}" in refused.value.why
        suffixes = {name.removeprefix(longest.name) for name in names}
        assert {
            "_push",
            "_push_many",
            "_pop",
            "_pop_many",
            "_archive",
            design.table_suffix,
        } <= suffixes
        assert not design.keeps_row or {"_complete", "_fail"} <= suffixes


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=60))
def test_the_limit_is_in_the_engine_s_unit_of_length(name: str) -> None:
    for product, design in PAIRS:
        limit, _ = object_names.limit(product, design.name, "s")
        if product.name_length(name) <= limit:
            object_names.check(product, queue(design, name))
        else:
            with pytest.raises(UsageError, match="too long"):
                object_names.check(product, queue(design, name))


@pytest.mark.parametrize(
    ("schema", "name", "complaint"),
    [
        ("s", "", "queue cannot be empty"),
        ("", "q", "schema cannot be empty"),
        ("s", "a\0", "NUL"),
        ("\0", "q", "NUL"),
        ("s", "\udcff", "not valid Unicode"),
        ("\udcff", "q", "not valid Unicode"),
        ("x" * 200, "q", "schema's name is too long"),
    ],
)
def test_invalid_names_are_refused(schema: str, name: str, complaint: str) -> None:
    for product, design in PAIRS:
        with pytest.raises(UsageError, match=complaint):
            object_names.check(product, queue(design, name, schema))


@given(st.text(), st.text(), st.text(), st.text())
def test_channels_are_short_alphanumeric_and_unique(a: str, b: str, c: str, d: str) -> None:
    design = DESIGNS["fifo"]
    first, second = queue(design, b, a).channel, queue(design, d, c).channel
    assert (first == second) == ((a, b) == (c, d))
    assert first.isascii()
    assert first.replace("_", "").isalnum()
    assert len(first) <= 63


def test_an_adopted_table_keeps_its_own_name() -> None:
    for design in DESIGNS.values():
        assert Queue("s", "t", design, {}, {}, kind=Kind.ADOPTED).table == "t"
