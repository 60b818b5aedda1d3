"""Queues in tables that others made: presets of libraries, users' own presets, adoption.

`designs/` has the presets, `discovery` finds their tables, `adopt` records one, `preset_check` and
`own_fragments` check a user's own preset on a server.
"""

from console.features import Feature

FEATURE = Feature()
