"""Laws of the archive's checksum, its dates and its keys, and of the lake's names."""

from collections.abc import Callable
from datetime import UTC, date, datetime
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from console.pipeline import lake
from console.pipeline.archive import delete, export, files

BEGIN, END = datetime(1, 1, 1), datetime(9999, 12, 31)  # noqa: DTZ001
MOMENT = st.datetimes(BEGIN, END, timezones=st.just(UTC))
MOMENTS = st.none() | MOMENT
TEXTS = st.none() | st.text(max_size=5)
ROW = st.fixed_dictionaries(
    {
        "archive_id": st.none() | st.integers(-(2**63), 2**63 - 1),
        "id": st.text(max_size=5),
        "payload": st.binary(max_size=8),
        "pushed_at": MOMENTS,
        "done_at": MOMENTS,
        "state": st.sampled_from(["done", "error", ""]),
        "attempts": st.integers(-(2**31), 2**31 - 1),
        "error": TEXTS,
        "reason": TEXTS,
        "title": TEXTS,
        "due_at": MOMENTS,
        "archived_at": MOMENT,
    }
)
Row = dict[str, Any]


def batch(found: list[Row]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(found, schema=files.SCHEMA)


def total(found: list[Row]) -> files.Sum:
    return files.total(batch(found))


@settings(max_examples=30)
@given(st.lists(ROW, max_size=6), st.randoms(use_true_random=False), st.integers(0, 6))
def test_order_and_parts_make_no_difference(found: list[Row], dice: Any, at: int) -> None:
    shuffled = dice.sample(found, len(found))
    assert total(found) == total(shuffled)
    assert total(found[:at]) + total(found[at:]) == total(found)
    sliced = batch([*found, *found]).slice(len(found))
    assert files.total(sliced) == total(found), "of a part of a buffer, its own rows"
    assert files.Sum.of_json(total(found).as_json()) == total(found)
    assert total(found).bytes == sum(len(row["payload"]) for row in found)


@settings(max_examples=60)
@given(st.lists(ROW, min_size=1, max_size=4), ROW, st.sampled_from(files.SCHEMA.names))
def test_any_other_value_makes_another_sum(found: list[Row], other: Row, name: str) -> None:
    changed = [{**found[0], name: other[name]}, *found[1:]]
    same = changed[0][name] == found[0][name]
    assert (total(changed).checksum == total(found).checksum) == same
    assert total([*found, found[0]]).checksum != total(found).checksum, "a row twice"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"error": None, "reason": "a"}, {"error": "a", "reason": None}),
        ({"error": "", "reason": None}, {"error": None, "reason": ""}),
        ({"id": "1", "payload": b"23"}, {"id": "12", "payload": b"3"}),
        ({"archive_id": None}, {"archive_id": 0}),
        ({"due_at": None}, {"due_at": datetime(1970, 1, 1, tzinfo=UTC)}),
    ],
)
def test_what_looks_alike_is_not_the_same(one: Row, other: Row) -> None:
    whole = {"archive_id": 1, "id": "", "payload": b"", "state": "", "attempts": 0}
    empty = dict.fromkeys(files.SCHEMA.names) | whole
    assert total([{**empty, **one}]).checksum != total([{**empty, **other}]).checksum


@settings(max_examples=30)
@given(st.lists(ROW, min_size=1, max_size=6))
def test_each_row_lies_under_its_own_day(found: list[Row]) -> None:
    parts = export.by_date(batch(found))
    for day, part in parts:
        assert {str(row["archived_at"].date()) for row in part.to_pylist()} == {day}
    assert sum((files.total(part) for _, part in parts), files.Sum()) == total(found)
    assert len({day for day, _ in parts}) == len(parts)


def test_the_day_is_that_of_utc_whatever_clocks_were_changed() -> None:
    whole = {"archive_id": 1, "id": "", "payload": b"", "state": "", "attempts": 0}
    moments = [
        datetime(2026, 3, 28, 23, 59, 59, 999_999, tzinfo=UTC),
        datetime(2026, 3, 29, 1, 0, tzinfo=UTC),
        datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
    ]
    found = [dict.fromkeys(files.SCHEMA.names) | whole | {"done_at": m} for m in moments]
    assert files.dates(batch(found)).to_pylist() == [
        date(2026, 3, 28),
        date(2026, 3, 29),
        date(1969, 12, 31),
    ]


@given(st.sets(st.integers(-50, 50) | st.integers(-(2**63), 2**63 - 1)))
def test_runs_tell_exactly_the_keys(keys: set[int]) -> None:
    told = delete.runs(sorted(keys))
    assert delete.keys_of(told) == keys
    assert all(a[0] + a[1] < b[0] for a, b in pairwise(told)), "none to join"


NAME = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=9
)


@pytest.mark.parametrize(
    "part",
    [
        lambda a, _: (lake.connection_part(a), lake.connection_of(lake.connection_part(a)), a),
        lambda a, b: (lake.queue_part(a, b), lake.queue_of(lake.queue_part(a, b)), (a, b)),
    ],
    ids=["connection", "queue"],
)
@given(first=NAME, second=NAME)
def test_a_name_is_one_name_of_a_folder(
    part: Callable[[str, str], tuple[str, Any, Any]], first: str, second: str
) -> None:
    folder, back, whole = part(first, second)
    assert back == whole
    assert "/" not in folder
    assert folder.isascii()
    assert not folder.startswith((".", "_"))
