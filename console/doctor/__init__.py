"""What is wrong with a queue, proven; and how it is mended without losing a message."""
