"""`python -m console.cli`: the same as the command dbq-console."""

from console.cli import main

if __name__ == "__main__":  # spark-submit is told the path of this file, by importing it
    main()
