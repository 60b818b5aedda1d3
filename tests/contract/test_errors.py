"""Errors by their wording, on every engine."""

import pytest

from console.errors import UsageError
from console.monitor.errors import error_groups
from tests.contract.conftest import Use
from tests.contract.filled import ids_of, seen
from tests.contract.variants import BEHAVIOURS, DEFAULTS, Variant

KEPT = [variant for variant in BEHAVIOURS if variant.finishes]


@pytest.mark.parametrize("variant", KEPT, ids=str)
def test_errors_are_grouped_by_their_wording(use: Use, variant: Variant) -> None:
    client = use(variant)
    texts = [f"order {n} refused at 10:20:{n:02}" for n in range(10)] + ["no disk", ""]
    client.push_many(client.payloads(*range(len(texts))))
    for taken, text in zip(client.pop_many(50), texts, strict=True):
        assert client.fail(taken, text)
    found = error_groups(client.database, client.queue)
    assert (found.counted, found.ungrouped, found.complete) == (12, 0, True)
    assert [(group.wording, group.count) for group in found.groups] == [
        ("order <n> refused at <time>", 10),
        ("", 1),
        ("no disk", 1),
    ]
    first = found.groups[0]
    assert first.first_at is not None
    assert first.last_at is not None
    assert first.first_at < first.last_at
    assert (first.attempts_least, first.attempts_most) == (1, 1)
    assert first.sample == texts[9]
    assert first.sample_id in ids_of(seen(client, f"error~{texts[9]}"))


@pytest.mark.parametrize("variant", [v for v in DEFAULTS if not v.finishes], ids=str)
def test_a_queue_without_errors_says_so(use: Use, variant: Variant) -> None:
    client = use(variant)
    with pytest.raises(UsageError, match="no errors to look at"):
        error_groups(client.database, client.queue)
