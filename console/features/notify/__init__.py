"""Notifications of findings: `targets` formats and delivers them, `outbox` keeps them in the
database, `notifier` is the recorder's thread."""

from console.features import Feature

FEATURE = Feature(needs=("history",))
