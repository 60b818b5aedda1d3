"""The commands of this feature, as those of `console.cli.commands`."""
