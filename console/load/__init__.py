"""Load on a queue, by processes of its own, and the check of every message; for smoke and bench."""
