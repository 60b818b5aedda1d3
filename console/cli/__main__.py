"""`python -m console.cli`: the same as the command dbq-console."""

from console.cli import main

main()
