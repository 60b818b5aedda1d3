"""The contract of every design and option, on a real server."""
