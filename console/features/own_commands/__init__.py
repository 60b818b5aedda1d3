"""A user's own commands on the row under the cursor, by a key: `commands` what they are and how
they run, `rows` the keys on the screens."""

from console.features import Feature

FEATURE = Feature()
