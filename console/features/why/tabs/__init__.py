"""The tabs of a queue that this feature has, found by their place."""
