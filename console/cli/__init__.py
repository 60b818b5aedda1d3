"""The command line.

Results go to stdout, narration to stderr. Exit: 0 done, 1 the answer is no, 2 wrong use,
3 cannot connect or lost the connection, 4 refused or only planned.
"""

import signal
import sys


def main() -> None:
    """The command `dbq-console`."""
    try:
        from console.cli import verbs  # noqa: PLC0415  # takes so long that it may be interrupted
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)
    sys.exit(verbs.run())
