"""What somebody else would add to the console, as console/README.md says, and its use.

`use_*` run in a copy of the package that has it.
"""
