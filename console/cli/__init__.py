"""The command line.

Results go to stdout, narration to stderr. Exit: 0 done, 1 the answer is no, 2 wrong use,
3 cannot connect or lost the connection, 4 refused or only planned.
"""

import atexit
import gc
import signal
import sys

_YOUNG_OBJECTS = 20_000
"""So many are made before the collector looks at them: a verb makes that many by its imports, which
are no garbage, and Python's 700 would have it look at all of these again and again."""


def main() -> None:
    """The command `dbq-console`."""
    gc.set_threshold(_YOUNG_OBJECTS)
    atexit.register(gc.freeze)  # else all of them are looked at once more, for nothing
    try:
        try:
            from console.cli import verbs  # noqa: PLC0415  # takes so long that it may be interrupted
        except KeyboardInterrupt:
            print("Interrupted.", file=sys.stderr)
            sys.exit(128 + signal.SIGINT)
        sys.exit(verbs.run())
    finally:
        # An interrupt that leaves an exec() of source text, by which every dataclass is made, has
        # `python -m` end by that signal, whoever caught it since: until the next such exec().
        exec("")  # noqa: S102
