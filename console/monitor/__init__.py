"""What the queues are doing now: sample, immutable snapshot, rates. Nothing here draws."""

from console.monitor.sample import DatabaseSample, QueueSample, take_sample
from console.monitor.sampler import Reading, Sampler
from console.monitor.snapshot import QueueSnapshot, RateWindow, snapshot

__all__ = [
    "DatabaseSample",
    "QueueSample",
    "QueueSnapshot",
    "RateWindow",
    "Reading",
    "Sampler",
    "snapshot",
    "take_sample",
]
