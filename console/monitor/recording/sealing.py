"""Closes a segment in a process of its own: `python -m console.monitor.recording.sealing`.

Tens of thousands of lines are read and pyarrow is loaded for it. A console that did that itself
would stand still meanwhile, and never give the memory back.
"""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

from console.monitor.recording import segments

_SECONDS = 300.0


def start(root: Path, connection: str, path: Path, lock: int) -> "subprocess.Popen[str]":
    """Begin; the process outlives this one, and holds the lock as long as it runs. OSError."""
    # -P: not the folder in which the user is; another project's "console" may lie there.
    words = [sys.executable, "-P", "-m", __name__, str(root), connection, str(path)]
    return subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        pass_fds=(lock,),
        start_new_session=True,
    )


def outcome(child: "subprocess.Popen[str]") -> int:
    """How many lines were torn. OSError."""
    try:
        told, _ = child.communicate(timeout=_SECONDS)
    except subprocess.TimeoutExpired as error:
        child.kill()
        child.wait()
        raise OSError(None, "it takes too long") from error
    if child.returncode:
        raise OSError(None, told.strip() or f"its process ended with {child.returncode}")
    return int(told)


def main() -> None:
    """Close the one that the command line names; what came of it on stdout."""
    with contextlib.suppress(OSError):
        os.nice(10)
    # Whoever started it may be gone by now, and its end of the pipe.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    root, connection, path = sys.argv[1:]
    try:
        torn = segments.seal(Path(root), connection, Path(path)).torn
    except OSError as error:
        print(error.strerror or error)
        sys.exit(1)
    print(torn)


if __name__ == "__main__":
    main()
