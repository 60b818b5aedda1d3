"""What the queues are doing now: sample, immutable snapshot, rates. Nothing here draws."""
