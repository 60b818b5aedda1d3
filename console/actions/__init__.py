"""How verbs are carried out: plans, batches, checks."""

BATCH = 500
"""Default messages of a transaction."""
MOST_BATCH = 4_000
"""With fewer locks on rows and keys, SQL Server does not lock the whole table."""
