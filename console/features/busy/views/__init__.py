"""The list of this feature, as those of `console.views`."""
