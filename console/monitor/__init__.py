"""What the queues are doing now: sample, immutable snapshot, rates. Nothing here draws."""

from console.monitor.memory import Memory
from console.monitor.owners import Claim, Evidence, Holder
from console.monitor.rates import RateWindow
from console.monitor.sample import DatabaseSample, QueueSample, take_sample
from console.monitor.sampler import Reading, Sampler
from console.monitor.snapshot import QueueSnapshot, snapshot

__all__ = [
    "Claim",
    "DatabaseSample",
    "Evidence",
    "Holder",
    "Memory",
    "QueueSample",
    "QueueSnapshot",
    "RateWindow",
    "Reading",
    "Sampler",
    "snapshot",
    "take_sample",
]
