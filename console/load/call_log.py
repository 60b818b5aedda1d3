"""The bench's messages, and the log of one worker process's calls.

A message has exactly the requested length: a head of 8 digits of checksum, 4 of the producer, 10 of
its number there, 16 of the microsecond (of this machine's monotonic clock); then a filler, the same
in all. The statement `codes` of `queries/<engine>/bench.sql` checks it in the database.
"""

import json
import random
import string
from array import array
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa


HEAD = 38
SMALLEST = 40
"""Bytes of a payload."""
NUMBERS = 10_000_000_000
"""A message's code is its producer times this, plus its number."""
NO_HEAD = b"?" * HEAD
DAMAGED = -1
"""The code of a payload that is not as it was pushed, or not the bench's."""

_BY_PRODUCER, _BY_NUMBER, _BY_TIME, _MODULUS = 7919, 104_729, 31, 99_999_989


def filler(length: int) -> bytes:
    """The rest of payloads of `length` bytes; it does not compress."""
    signs = string.ascii_letters + string.digits
    return "".join(random.Random(length).choices(signs, k=length - HEAD)).encode()  # noqa: S311


def head(producer: int, number: int, at_us: int) -> bytes:
    check = (producer * _BY_PRODUCER + number * _BY_NUMBER + at_us * _BY_TIME) % _MODULUS
    return b"%08d%04d%010d%016d" % (check, producer, number, at_us)


class TextMessages:
    """Heads followed by the filler."""

    def __init__(self, length: int) -> None:
        """`length`: in bytes."""
        self._rest = filler(length)

    def write(self, producer: int, number: int, at_us: int) -> bytes:
        return head(producer, number, at_us) + self._rest

    def head_of(self, payload: bytes) -> bytes:
        """NO_HEAD where the filler is not whole."""
        return payload[:HEAD] if payload[HEAD:] == self._rest else NO_HEAD


def codes_and_times(heads: bytes | bytearray) -> "tuple[pa.Int64Array, pa.Int64Array]":
    """From concatenated heads: (codes, microseconds of the pushes); DAMAGED, 0 where invalid."""
    import pyarrow as pa  # noqa: PLC0415  # verbs shall start at once
    import pyarrow.compute  # noqa: PLC0415

    # Its functions are generated at import: type checkers do not see them.
    pc: Any = pyarrow.compute

    count = len(heads) // HEAD
    offsets = pa.array(range(0, HEAD * count + 1, HEAD), pa.int64())
    texts = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), count, [None, offsets.buffers()[1], pa.py_buffer(heads)]
    )
    is_numeric = pc.match_substring_regex(texts, f"^[0-9]{{{HEAD}}}$")
    digits = pc.if_else(is_numeric, texts, b"0" * HEAD).cast(pa.large_string())
    check, producer, number, at_us = (
        pc.utf8_slice_codeunits(digits, start, stop).cast(pa.int64())
        for start, stop in ((0, 8), (8, 12), (12, 22), (22, HEAD))
    )
    total = pc.add(
        pc.add(pc.multiply(producer, _BY_PRODUCER), pc.multiply(number, _BY_NUMBER)),
        pc.multiply(at_us, _BY_TIME),
    )
    remainder = pc.subtract(total, pc.multiply(pc.divide(total, _MODULUS), _MODULUS))
    is_right = pc.and_(is_numeric, pc.equal(check, remainder))
    code = pc.add(pc.multiply(producer, NUMBERS), number)
    return pc.if_else(is_right, code, DAMAGED), pc.if_else(is_right, at_us, 0)


@dataclass(frozen=True)
class Latency:
    """In milliseconds, commits included."""

    p50: float
    p95: float
    p99: float

    @property
    def seconds(self) -> dict[str, float]:
        """By percentile, in seconds, as `--json` has it."""
        return {cut: round(ms / 1000, 6) for cut, ms in asdict(self).items()}


_CODES = {"at_us": "q", "client": "q", "messages": "q", "took_us": "q"}


@dataclass
class Calls:
    """An entry per call that moved messages, in the order of the answers."""

    at_us: "array[int]" = field(default_factory=lambda: array("q"))
    """Of the answer, by this machine's monotonic clock."""
    client: "array[int]" = field(default_factory=lambda: array("q"))
    messages: "array[int]" = field(default_factory=lambda: array("q"))
    took_us: "array[int]" = field(default_factory=lambda: array("q"))

    def add(self, at_us: int, client: int, messages: int, took_us: int) -> None:
        self.at_us.append(at_us)
        self.client.append(client)
        self.messages.append(messages)
        self.took_us.append(took_us)

    def extend(self, other: "Calls") -> None:
        for name in _CODES:
            getattr(self, name).extend(getattr(other, name))

    def __len__(self) -> int:
        return len(self.at_us)


@dataclass
class CallLog:
    pushes: Calls = field(default_factory=Calls)
    """`client` is the producer; its messages are numbered from 0, in the order of the calls."""
    pops: Calls = field(default_factory=Calls)
    heads: bytearray = field(default_factory=bytearray)
    """Of popped messages, in the order of the calls."""
    empty: int = 0
    """Pops that found nothing."""
    full: int = 0
    """Pushes that stored fewer messages than they were given."""
    unfinished: int = 0
    """Claims that were gone when they were to be completed."""
    pushes_in_doubt: list[tuple[int, int]] = field(default_factory=list)
    """(producer, messages) of calls without an answer: its next numbers."""
    pops_in_doubt: int = 0
    """The most messages that calls without an answer may have popped."""
    errors: list[str] = field(default_factory=list)
    """The first few of the server's."""
    failed_calls: int = 0
    cpu_seconds: float | None = None
    """Of the process, in the measured time."""

    def save(self, path: Path) -> None:
        arrays = {f"{kind}.{name}": getattr(getattr(self, kind), name) for kind, name in _PARTS}
        parts = {name: values.tobytes() for name, values in arrays.items()}
        parts["heads"] = bytes(self.heads)
        plain = {name: getattr(self, name) for name in _PLAIN}
        lengths = {name: len(data) for name, data in parts.items()}
        with path.open("wb") as file:
            file.write(json.dumps({"plain": plain, "lengths": lengths}).encode() + b"\n")
            for data in parts.values():
                file.write(data)

    @classmethod
    def load(cls, path: Path) -> "CallLog":
        call_log = cls()
        with path.open("rb") as file:
            outline: dict[str, Any] = json.loads(file.readline())
            for name, length in outline["lengths"].items():
                data = file.read(length)
                if name == "heads":
                    call_log.heads += data
                else:
                    kind, _, column = name.partition(".")
                    getattr(getattr(call_log, kind), column).frombytes(data)
        for name, value in outline["plain"].items():
            setattr(call_log, name, value)
        call_log.pushes_in_doubt = [(p, n) for p, n in call_log.pushes_in_doubt]
        return call_log

    @classmethod
    def merged(cls, call_logs: Sequence["CallLog"]) -> "CallLog":
        """Each client is in one of them, so its calls keep their order."""
        total = cls()
        for one in call_logs:
            total.pushes.extend(one.pushes)
            total.pops.extend(one.pops)
            total.heads += one.heads
            for name in ("empty", "full", "unfinished", "pops_in_doubt", "failed_calls"):
                setattr(total, name, getattr(total, name) + getattr(one, name))
            total.pushes_in_doubt += one.pushes_in_doubt
            total.errors += [error for error in one.errors if error not in total.errors]
        seconds = [call_log.cpu_seconds for call_log in call_logs]
        known = [second for second in seconds if second is not None]
        total.cpu_seconds = sum(known) if known and len(known) == len(seconds) else None
        return total


_PARTS = tuple((kind, name) for kind in ("pushes", "pops") for name in _CODES)
_PLAIN = (
    "empty",
    "full",
    "unfinished",
    "pushes_in_doubt",
    "pops_in_doubt",
    "errors",
    "failed_calls",
    "cpu_seconds",
)
