"""The tabs of this feature."""
