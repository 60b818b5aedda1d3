"""What an operator can do to a queue: one verb a file."""

BATCH = 500
"""So many messages an action moves in one transaction, unless it is told otherwise."""
MOST_BATCH = 4_000
"""Below the number of locks from which SQL Server takes the whole table."""
