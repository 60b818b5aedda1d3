"""The tabs of a queue's screen, one per file."""
