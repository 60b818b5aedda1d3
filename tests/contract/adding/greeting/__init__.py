"""Greetings."""

from console.features import Feature

FEATURE = Feature("greets whoever is on call", needs=("metrics",))
