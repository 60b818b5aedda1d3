"""The jobs as commands: their plans, progress and results."""
