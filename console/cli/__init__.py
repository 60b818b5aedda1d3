"""The command line.

Results go to stdout, narration to stderr. Exit: 0 done, 1 a negative result, 2 wrong usage,
3 cannot connect or lost the connection, 4 refused or only planned.
"""

import atexit
import gc
import signal
import sys

_YOUNG_OBJECTS = 20_000
"""Threshold of the garbage collector: about as many objects as the imports of a verb create, which
Python's default of 700 would examine again and again."""


def main() -> None:
    """The command `dbq-console`."""
    gc.set_threshold(_YOUNG_OBJECTS)
    atexit.register(gc.freeze)  # no last collection at exit
    try:
        try:
            from console.cli import verbs  # noqa: PLC0415  # slow enough to be interrupted
        except KeyboardInterrupt:
            print("Interrupted.", file=sys.stderr)
            sys.exit(128 + signal.SIGINT)
        sys.exit(verbs.run())
    finally:
        # After an interrupt during an exec() of source text (every dataclass runs one), `python -m`
        # exits by that signal even if it was caught, unless another exec() follows.
        exec("")  # noqa: S102
