"""How verbs are carried out: plans, batches, checks."""

BATCH = 500
"""Default messages of a transaction."""
MOST_QUICK_BATCH = 16_000
"""Where no locks become one of the table, and none was given."""
MOST_BATCH = 4_000
"""With fewer locks on rows and keys, SQL Server does not lock the whole table."""
