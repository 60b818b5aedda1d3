"""`python -m console.cli`: the same as the command dbq-console."""

from console.cli import main

if __name__ == "__main__":  # imported to pass its path to spark-submit
    main()
