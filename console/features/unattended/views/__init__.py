"""The lists of this feature, as those of `console.views`."""
