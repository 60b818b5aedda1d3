"""The demo: a real server, one queue of every design, live traffic with faults."""

from console.features import Feature

FEATURE = Feature()
