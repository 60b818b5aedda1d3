"""Laws of the archive's digests and dates, of the lake's names, and of verify."""

import math
import random
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from typing import Any
from urllib.parse import quote, unquote

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from console.designs import Order, order
from console.features.lake import table
from console.features.lake.archive import export, files
from console.features.lake.archive.digests import ColumnDigests
from console.features.lake.verify import Front, before

BEGIN, END = datetime(1, 1, 1), datetime(9999, 12, 31)  # noqa: DTZ001
MOMENT = st.datetimes(BEGIN, END, timezones=st.just(UTC))
MOMENTS = st.none() | MOMENT
TEXTS = st.none() | st.text(max_size=5)
ROW = st.fixed_dictionaries(
    {
        "archive_id": st.none() | st.integers(-(2**63), 2**63 - 1),
        "id": st.text(max_size=5),
        "payload": TEXTS,
        "payload_bytes": st.none() | st.binary(max_size=8),
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


def digest_of(found: list[Row]) -> Row:
    return digest_of_batches([batch(found)])


def digest_of_batches(batches: Iterable[pa.RecordBatch]) -> Row:
    tally = ColumnDigests()
    for batch in batches:
        tally.add(batch)
    return tally.as_json()


@pytest.mark.long
@given(found=st.lists(ROW, min_size=1, max_size=6), cuts=st.lists(st.integers(0, 6), max_size=4))
def test_digests_do_not_depend_on_the_boundaries_of_batches(
    found: list[Row], cuts: list[int]
) -> None:
    ends = [0, *sorted(cuts), max(len(found), *cuts, 0)]
    all_rows = batch([*found, *found]).slice(len(found))
    parts = [all_rows.slice(first, last - first) for first, last in pairwise(ends)]
    expected = digest_of(found)
    assert digest_of_batches([part for part in parts if part.num_rows]) == expected
    assert expected["rows"] == len(found)
    texts = [(row["payload"] or "").encode() + (row["payload_bytes"] or b"") for row in found]
    assert expected["bytes"] == sum(map(len, texts))


def flipped(column: pa.Array, at: int, rng: random.Random) -> pa.Array:
    """The column with one bit of one value flipped."""
    values = column.cast(pa.binary() if pa.types.is_string(column.type) else column.type)
    if pa.types.is_binary(values.type):
        texts = values.to_pylist()
        assume(texts[at])
        bit = rng.randrange(len(texts[at]) * 8)
        changed = bytearray(texts[at])
        changed[bit // 8] ^= 1 << bit % 8
        texts[at] = bytes(changed)
        return pa.array(texts, pa.binary()).view(column.type)
    assume(column[at].is_valid)
    width = column.type.bit_width
    integer = pa.int64() if width == 64 else pa.int32()
    numbers = column.view(integer).to_pylist()
    numbers[at] ^= (1 << rng.randrange(width - 1)) if numbers[at] >= 0 else -(2 ** (width - 1))
    return pa.array(numbers, integer).view(column.type)


def changed(rows: pa.RecordBatch, name: str, how: str, rng: random.Random) -> pa.RecordBatch:
    """The same rows with one change."""
    numbers, at = list(range(rows.num_rows)), rng.randrange(rows.num_rows)
    if how in {"dropped", "doubled"}:
        numbers[at : at + 1] = [] if how == "dropped" else [at, at]
        return rows.take(pa.array(numbers, pa.int64()))
    column = rows.column(name)
    if how == "a bit":
        column = flipped(column, at, rng)
    else:
        values, other = column.to_pylist(), (at + 1) % rows.num_rows
        time = pa.types.is_timestamp(column.type)
        empty = datetime(1970, 1, 1, tzinfo=UTC) if time else ""
        if how == "exchanged":
            values[at], values[other] = values[other], values[at]
        elif pa.types.is_integer(column.type):
            values[at] = 0 if values[at] is None else None
        else:
            values[at] = empty if values[at] is None else None
        column = pa.array(values, column.type)
        assume(not column.equals(rows.column(name)))
    columns = [column if each == name else rows.column(each) for each in rows.schema.names]
    return pa.RecordBatch.from_arrays(columns, names=rows.schema.names)


@pytest.mark.long
@pytest.mark.parametrize("how", ["a bit", "exchanged", "null", "dropped", "doubled"])
@settings(suppress_health_check=[HealthCheck.filter_too_much])
@given(
    found=st.lists(ROW, min_size=2, max_size=5),
    name=st.sampled_from(files.SCHEMA.names),
    rng=st.randoms(use_true_random=False),
)
def test_every_change_changes_the_digest(
    how: str, found: list[Row], name: str, rng: random.Random
) -> None:
    rows = batch(found)
    before, now = digest_of_batches([rows]), digest_of_batches([changed(rows, name, how, rng)])
    assert before != now
    if how not in {"dropped", "doubled"}:
        others = {column for column in files.SCHEMA.names if column != name}
        assert {c for c in others if now["sha256"][c] != before["sha256"][c]} == set()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"error": None, "reason": "a"}, {"error": "a", "reason": None}),
        ({"error": "", "reason": None}, {"error": None, "reason": ""}),
        ({"id": "1", "payload": "23"}, {"id": "12", "payload": "3"}),
        ({"archive_id": None}, {"archive_id": 0}),
        ({"due_at": None}, {"due_at": datetime(1970, 1, 1, tzinfo=UTC)}),
    ],
)
def test_similar_rows_have_different_digests(one: Row, other: Row) -> None:
    required = {"archive_id": 1, "id": "", "state": "", "attempts": 0}
    empty = dict.fromkeys(files.SCHEMA.names) | required
    assert digest_of([{**empty, **one}]) != digest_of([{**empty, **other}])


@given(st.lists(ROW, min_size=1, max_size=6))
def test_each_row_is_in_the_partition_of_its_day(found: list[Row]) -> None:
    parts = export.by_date(batch(found))
    for day, part in parts:
        assert {str(row["archived_at"].date()) for row in part.to_pylist()} == {day}
    kept = [row for _, part in parts for row in part.to_pylist()]
    assert sorted(map(repr, kept)) == sorted(map(repr, batch(found).to_pylist()))
    assert len({day for day, _ in parts}) == len(parts)


def test_the_day_is_that_of_utc_regardless_of_clock_changes() -> None:
    required = {"archive_id": 1, "id": "", "state": "", "attempts": 0}
    moments = [
        datetime(2026, 3, 28, 23, 59, 59, 999_999, tzinfo=UTC),
        datetime(2026, 3, 29, 1, 0, tzinfo=UTC),
        datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
    ]
    found = [dict.fromkeys(files.SCHEMA.names) | required | {"archived_at": m} for m in moments]
    assert files.dates(batch(found)).to_pylist() == [
        date(2026, 3, 28),
        date(2026, 3, 29),
        date(1969, 12, 31),
    ]


NAME = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=9
)


@given(connection=NAME, schema=NAME, queue=NAME)
def test_names_become_one_folder_of_the_lake_and_can_be_read_back(
    connection: str, schema: str, queue: str
) -> None:
    value = table.queue_value(schema, queue)
    assert table.names_of(value) == (schema, queue)
    parts = table.folder_of(connection, value, "2026-03-29").split("/")
    assert len(parts) == 4
    assert unquote(parts[1]) == f"connection={connection}"
    if len(quote(value, safe="")) <= 200:
        assert unquote(parts[2]) == f"queue={value}"
    assert all(part.isascii() and len(part) <= 255 for part in parts)


@pytest.mark.parametrize("name", ["ü" * 60, "z" * 300])
def test_names_too_long_for_a_folder_keep_folders_of_their_own(name: str) -> None:
    folders = [table.folder_of(one, "public.orders", "2026-03-29") for one in (name, name + "x")]
    assert len(set(folders)) == 2
    assert max(len(part) for folder in folders for part in folder.split("/")) <= 255


# -- the order of pops, judged in pieces

FIRST = datetime(2026, 1, 1, tzinfo=UTC)
logs = st.lists(st.tuples(st.integers(0, 20), st.none() | st.integers(0, 8)), max_size=25)


@given(logs, st.integers(1, 6))
def test_judging_a_log_in_pieces_equals_judging_it_as_one(
    log: list[tuple[int, int | None]], size: int
) -> None:
    pops = [
        order.Pop(number, None if at is None else FIRST + timedelta(seconds=at))
        for number, at in log
    ]
    expected = [one.pop for one in order.judge(pops, Order.LAX).overtaken]
    numbers = np.array([number for number, _ in log], np.int64)
    times = np.array([math.nan if at is None else at for _, at in log], float)
    starts = range(0, len(log), size)
    pieces = [(numbers[at : at + size], times[at : at + size]) for at in starts]
    own = [Front() for _ in pieces]
    for front, piece in zip(own, pieces, strict=True):
        front.judged(*piece)
    earlier = map(Front, before([front.points for front in own]))
    found = [
        int(by) for front, piece in zip(earlier, pieces, strict=True) for by in front.judged(*piece)
    ]
    assert [pop for pop, by in zip(pops, found, strict=True) if by] == expected


def test_a_front_is_short_where_numbers_rise_with_time() -> None:
    front = Front()
    for number in range(1000):
        front.add((number, float(number)))
    assert front.points == [(999, 999.0)]
    assert front.overtook((990, 990.0)) == 9
