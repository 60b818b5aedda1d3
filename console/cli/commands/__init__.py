"""The commands with a run of their own: each module is one, as `COMMAND`.

Its docstring is the command's help, whose first line the list of commands shows without importing
it.
"""
