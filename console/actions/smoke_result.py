"""The messages and results of smoke tests, on a scratch queue or on the queue itself."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from console.actions.push import Payload
from console.catalog import Queue
from console.errors import ConsoleError
from console.formats import numbered
from console.load.call_log import Latency

_MOST_DIGITS = 9
_BAD = ("lost", "doubled", "damaged", "out_of_order", "unfinished")
NOT_YET = Latency(0.0, 0.0, 0.0)


@dataclass(frozen=True)
class SmokeResult:
    """Everything but `messages` and the latencies should be 0."""

    queue: str
    design: str
    order: str
    messages: int
    lost: int
    doubled: int
    damaged: int
    out_of_order: int
    unfinished: int
    push_ms: Latency
    pop_ms: Latency
    errors: tuple[str, ...] = ()
    subscribers: tuple[str, ...] = ()
    """Each had to get every message; the counts are the sums of theirs."""

    @property
    def ok(self) -> bool:
        """Every message once, intact, in the promised order, and no call failed."""
        return not (any(getattr(self, name) for name in _BAD) or self.errors)


@dataclass(frozen=True)
class SmokeProgress:
    """Of a ring with subscribers, that of the slowest."""

    pushed: int
    popped: int
    total: int
    seconds: float
    """Since it began."""
    push_ms: Latency
    pop_ms: Latency


OnSmokeProgress = Callable[[SmokeProgress], None]


class StoppedError(ConsoleError):
    """The operator stopped the test."""

    exit_status = 4

    def __init__(self, pushed: int) -> None:
        super().__init__(
            "The smoke test was stopped.",
            why=f"{numbered(pushed, 'message')} had been pushed. Nothing was judged, and nothing "
            "is left behind.",
        )


def merged(smoke_results: Sequence[SmokeResult], subscribers: Sequence[str]) -> SmokeResult:
    """The results of all subscribers as one, whose errors name the subscriber."""
    first = smoke_results[0]
    if not subscribers:
        return first
    errors = dict.fromkeys(error for smoke_result in smoke_results for error in smoke_result.errors)
    for subscriber, one in zip(subscribers, smoke_results, strict=True):
        faults = [f"{n} {name.replace('_', ' ')}" for name in _BAD if (n := getattr(one, name))]
        if faults:
            errors[f"{subscriber}: {', '.join(faults)}"] = None
    counts = {
        name: sum(getattr(smoke_result, name) for smoke_result in smoke_results) for name in _BAD
    }
    return replace(first, **counts, errors=tuple(errors), subscribers=tuple(subscribers))


def payload_of(number: int, queue: Queue) -> Payload:
    """A payload with the message's number and, where it fits, characters that databases damage."""
    limit = queue.options["max_bytes"]
    roomy = limit == "unlimited" or int(limit) >= 64
    kind = queue.options["payload"]
    if kind == "bytes":
        return str(number).encode() + (b"\x00\xff '\\" if roomy else b"")
    if kind == "json":
        return f'{{"n": {number}, "x": 12345678901234567890.0123456789}}' if roomy else str(number)
    return f"{number} 'mä\\ 日本 🂡 \t  " if roomy else str(number)


def number_of(payload: Payload, queue: Queue) -> int:
    """The message's number if the payload is exactly as pushed, else -1."""
    text = payload.decode("latin-1") if isinstance(payload, bytes) else payload
    digits = text.removeprefix('{"n": ')
    end = next((i for i, sign in enumerate(digits) if not sign.isdecimal()), len(digits))
    number = int(digits[:end]) if 0 < end < _MOST_DIGITS else -1
    return number if number >= 0 and payload == payload_of(number, queue) else -1


def latency_of(microseconds: Sequence[int]) -> Latency:
    """In pure Python: an interrupt inside a library's code could be lost."""
    if len(microseconds) < 2:
        return NOT_YET
    cuts = statistics.quantiles(microseconds, n=100, method="inclusive")
    return Latency(*(round(cuts[at - 1] / 1000, 3) for at in (50, 95, 99)))
