"""What was, and what is usual: recordings, a queue's history, forecasts, replays."""

from console.features import Feature

FEATURE = Feature()
