"""How verbs are carried out: plans, batches, checks."""

BATCH = 500
"""Default messages of a transaction."""
MOST_BATCH = 4_000
"""Below the number of locks at which SQL Server locks the whole table."""
