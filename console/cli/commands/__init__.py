"""The commands with a run of their own: each module has one, as `COMMAND`, or a group of them.

Its docstring is the command's help, whose first line the list of commands shows without importing
it.
"""
