"""What an operator can do to a queue: one verb a file."""
