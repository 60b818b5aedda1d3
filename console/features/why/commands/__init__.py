"""The commands of this feature, found by their place."""
