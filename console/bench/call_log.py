"""What the clients of one worker process did, kept in arrays while they are at it."""

import json
from array import array
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Latency:
    """Milliseconds of one call, its commit included."""

    p50: float
    p95: float
    p99: float

    @property
    def seconds(self) -> dict[str, float]:
        """As results have it for machines: by cut, in seconds, to a microsecond."""
        return {cut: round(ms / 1000, 6) for cut, ms in asdict(self).items()}


_CODES = {"at_us": "q", "client": "q", "messages": "q", "took_us": "q"}


@dataclass
class Calls:
    """One entry a call that pushed, popped or finished something, in the order of the answers."""

    at_us: "array[int]" = field(default_factory=lambda: array("q"))
    """When it was answered, by this machine's monotonic clock."""
    client: "array[int]" = field(default_factory=lambda: array("q"))
    messages: "array[int]" = field(default_factory=lambda: array("q"))
    took_us: "array[int]" = field(default_factory=lambda: array("q"))

    def add(self, at_us: int, client: int, messages: int, took_us: int) -> None:
        """Note one call."""
        self.at_us.append(at_us)
        self.client.append(client)
        self.messages.append(messages)
        self.took_us.append(took_us)

    def extend(self, other: "Calls") -> None:
        """Put those of another worker behind."""
        for name in _CODES:
            getattr(self, name).extend(getattr(other, name))

    def __len__(self) -> int:
        return len(self.at_us)


@dataclass
class CallLog:
    """All of it."""

    pushes: Calls = field(default_factory=Calls)
    """`client` is the producer; its messages are numbered from 0, in the order of the calls."""
    pops: Calls = field(default_factory=Calls)
    heads: bytearray = field(default_factory=bytearray)
    """Of the messages that were popped, in the order of the calls."""
    empty: int = 0
    """Pops that found nothing."""
    full: int = 0
    """Pushes that stored less than they were given."""
    unfinished: int = 0
    """Claims that complete did not find."""
    pushes_in_doubt: list[tuple[int, int]] = field(default_factory=list)
    """(producer, messages) of calls without an answer: the numbers that follow its last."""
    pops_in_doubt: int = 0
    """The most messages that calls without an answer may have taken."""
    errors: list[str] = field(default_factory=list)
    """The first few, in the server's words."""
    failed_calls: int = 0
    cpu_seconds: float | None = None
    """Of the process, in the measured time."""

    def save(self, path: Path) -> None:
        """Write it for the process that runs the bench."""
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
        """Read what a worker wrote."""
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
        """All of them as one. Each client is in one of them, so its calls keep their order."""
        whole = cls()
        for one in call_logs:
            whole.pushes.extend(one.pushes)
            whole.pops.extend(one.pops)
            whole.heads += one.heads
            for name in ("empty", "full", "unfinished", "pops_in_doubt", "failed_calls"):
                setattr(whole, name, getattr(whole, name) + getattr(one, name))
            whole.pushes_in_doubt += one.pushes_in_doubt
            whole.errors += [error for error in one.errors if error not in whole.errors]
        seconds = [one.cpu_seconds for one in call_logs]
        known = [second for second in seconds if second is not None]
        whole.cpu_seconds = sum(known) if known and len(known) == len(seconds) else None
        return whole


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
