"""Archived messages out of a lake, back into a queue: each once.

`choosing` says which, as a filter of DataFrames; `job` pushes them by the design's own push, which
alone knows how its messages are numbered. What was pushed is on a list in the queue's database,
written in the transaction of the push: whoever is cut off goes on where it was.
"""
