"""How long calls take."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Latency:
    """Milliseconds of one call, its commit included."""

    p50: float
    p95: float
    p99: float
