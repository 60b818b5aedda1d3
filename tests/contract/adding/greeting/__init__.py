"""Greetings."""

from console.features import Feature

FEATURE = Feature(needs=("metrics",))
