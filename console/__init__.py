"""dbq-console: the terminal console for message queues kept in relational tables."""
