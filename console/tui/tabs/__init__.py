"""The tabs of a queue's screen, one a file."""
