"""What is wrong with a queue, proven; and how it is repaired without losing a message."""
