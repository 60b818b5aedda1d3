"""Free words and `field:value`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.monitor.sampler import Reading
from console.tui.store import Store
from console.tui.views import parse
from tests.tui.feeds import nine, queue


def found(text: str) -> set[str]:
    store = Store({"prod": 1.0}, now=0)
    odd = (queue('od"d; name', "fifo"), queue("a:b", "stack"))
    store.take("prod", Reading("prod", (*nine(), *odd)), at=0)
    wanted = parse(text)
    return {view.snapshot.queue for view in store.queues(0) if wanted.matches(view)}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("MAIL", {"mail"}),
        ("ring", {"orders"}),
        ("design:ring", {"orders"}),
        ("queue:re", {"reminders", "reports"}),
        ("re stat", {"reports"}),
        ("state:warning", {"mail", "orders", "reports"}),
        ("errors:>0", {"mail", "reports"}),
        ("errors:>11 errors:<13", {"reports"}),
        ("ready:>=9412", {"mail", "orders"}),
        ("ready:17", {"imports"}),
        ("push/s:>100", {"orders"}),
        ("connection:stage", set()),
        ('"d; n"', {'od"d; name'}),
        ("a:b", {"a:b"}),
        ("ready:many", set()),
        ('queue:"bill', {"billing"}),
    ],
)
def test_what_a_filter_finds(text: str, names: set[str]) -> None:
    assert found(text) == names


def test_a_critical_queue_is_found_by_its_state() -> None:
    store = Store({"prod": 1.0}, now=0)
    full = queue("full", "ring", gap=10, capacity=10)
    store.take("prod", Reading("prod", (full, *nine())), at=0)
    wanted = parse("state:critical")
    assert [view.label for view in store.queues(0) if wanted.matches(view)] == ["full"]


def test_no_filter_hides_nothing() -> None:
    assert not parse("  ")
    assert len(found("")) == 11


@given(st.text())
def test_whatever_is_typed_is_a_filter(text: str) -> None:
    found(text)
