"""Additions to the console as described in console/README.md, and scripts that use them.

`use_*` run in a copy of the package that has the addition.
"""
