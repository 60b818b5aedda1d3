"""Proves what the console claims of each design on an operator's own server.

On scratch queues only, whose names have a prefix of their own, and which are removed again.
"""

from console.features import Feature

FEATURE = Feature(needs=("bench",))
