"""The tabs of this feature, as those of `console.tui.tabs`."""
