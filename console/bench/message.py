"""The messages of the bench: each tells whose it is, which one, when it was pushed, and is checked.

Text of exactly the wanted length: 8 digits that check the head, 4 of the producer, 10 of the number
there, 16 of the microsecond (of this machine's monotonic clock), then a filler, the same in all.
The statement `codes` of `queries/<engine>/bench.sql` checks the same in the database.
"""

import random
import string
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

HEAD = 38
SMALLEST = 40
"""Bytes of a payload."""
PRODUCERS = 10_000
NUMBERS = 10_000_000_000
"""A message's code is its producer times this, plus its number."""
NO_HEAD = b"?" * HEAD
DAMAGED = -1
"""The code of what is no message of the bench, or not as it was pushed."""

_BY_PRODUCER, _BY_NUMBER, _BY_TIME, _MODULUS = 7919, 104_729, 31, 99_999_989


def filler(length: int) -> bytes:
    """What stands behind the heads of payloads of `length` bytes; nothing that compresses."""
    signs = string.ascii_letters + string.digits
    return "".join(random.Random(length).choices(signs, k=length - HEAD)).encode()  # noqa: S311


def head(producer: int, number: int, at_us: int) -> bytes:
    """The beginning of a payload."""
    check = (producer * _BY_PRODUCER + number * _BY_NUMBER + at_us * _BY_TIME) % _MODULUS
    return b"%08d%04d%010d%016d" % (check, producer, number, at_us)


class Texts:
    """Messages as they are pushed and read again: heads, and the filler behind them."""

    def __init__(self, length: int) -> None:
        """`length`: bytes of each."""
        self._rest = filler(length)

    def write(self, producer: int, number: int, at_us: int) -> bytes:
        """A message that is pushed now."""
        return head(producer, number, at_us) + self._rest

    def head_of(self, payload: bytes) -> bytes:
        """Of one that was popped; what is no message of ours in full gets a head that is none."""
        return payload[:HEAD] if payload[HEAD:] == self._rest else NO_HEAD


def codes_and_times(heads: bytes | bytearray) -> "tuple[pa.Int64Array, pa.Int64Array]":
    """Of heads, one behind the other: (codes, microseconds of the pushes). DAMAGED and 0 for those
    that are none."""
    import pyarrow as pa  # noqa: PLC0415  # verbs shall start at once
    import pyarrow.compute  # noqa: PLC0415

    # Its functions are made when it is imported: no checker of types knows them.
    pc: Any = pyarrow.compute

    count = len(heads) // HEAD
    offsets = pa.array(range(0, HEAD * count + 1, HEAD), pa.int64())
    texts = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), count, [None, offsets.buffers()[1], pa.py_buffer(heads)]
    )
    is_whole = pc.match_substring_regex(texts, f"^[0-9]{{{HEAD}}}$")
    digits = pc.if_else(is_whole, texts, b"0" * HEAD).cast(pa.large_string())
    check, producer, number, at_us = (
        pc.utf8_slice_codeunits(digits, start, stop).cast(pa.int64())
        for start, stop in ((0, 8), (8, 12), (12, 22), (22, HEAD))
    )
    total = pc.add(
        pc.add(pc.multiply(producer, _BY_PRODUCER), pc.multiply(number, _BY_NUMBER)),
        pc.multiply(at_us, _BY_TIME),
    )
    remainder = pc.subtract(total, pc.multiply(pc.divide(total, _MODULUS), _MODULUS))
    is_right = pc.and_(is_whole, pc.equal(check, remainder))
    code = pc.add(pc.multiply(producer, NUMBERS), number)
    return pc.if_else(is_right, code, DAMAGED), pc.if_else(is_right, at_us, 0)
