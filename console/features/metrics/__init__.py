"""What the queues are doing now, for Prometheus: figures, findings, ready-made alerts."""

from console.features import Feature

FEATURE = Feature()
