"""Messages of the bench: what was pushed is known again, and what is not that is told."""

from hypothesis import given
from hypothesis import strategies as st

from console.bench.call_log import (
    DAMAGED,
    HEAD,
    NUMBERS,
    SMALLEST,
    codes_and_times,
    filler,
    head,
)

heads = st.builds(
    lambda p, n, t: (p, n, t, head(p, n, t)),
    st.integers(0, 9_999),
    st.integers(0, NUMBERS - 1),
    st.integers(0, 10**16 - 1),
)


@given(st.lists(heads, max_size=20))
def test_each_is_read_as_it_was_written(written: list[tuple[int, int, int, bytes]]) -> None:
    codes, times = codes_and_times(b"".join(one[3] for one in written))
    assert codes.to_pylist() == [p * NUMBERS + n for p, n, _, _ in written]
    assert times.to_pylist() == [t for _, _, t, _ in written]


@given(heads, st.integers(0, HEAD - 1), st.integers(0, 255))
def test_one_byte_that_changed_is_seen(
    written: tuple[int, int, int, bytes], at: int, byte: int
) -> None:
    *_, whole = written
    changed = whole[:at] + bytes([byte]) + whole[at + 1 :]
    codes, _ = codes_and_times(changed + whole)
    assert (codes[0].as_py() == DAMAGED) == (changed != whole)
    assert codes[1].as_py() != DAMAGED


@given(st.integers(SMALLEST, 5000))
def test_a_payload_has_the_length_that_is_wanted(length: int) -> None:
    assert len(head(1, 2, 3) + filler(length)) == length
    assert filler(length) == filler(length)
