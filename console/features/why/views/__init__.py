"""The views of this feature, found by their place."""
