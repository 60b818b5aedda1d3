"""What the console claims of each design, proven on a server that somebody has.

On scratch queues only: what it makes it names by a prefix of its own, and takes away again.
"""
