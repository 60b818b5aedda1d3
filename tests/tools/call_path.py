"""The files on the call path from a queue's name to its SQL, which a reader has to open.

Whenever a statement is sent, every file of `console/` counts that has a frame on the stack which
holds the name, or an object made from it (a queue, a target, a plan, a source). Functions that had
returned by then do not count.
"""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from sqlalchemy import Engine, event

import console as package

ROOT = Path(package.__file__).parent
MOST = 11
"""Files; lower it if a change needs fewer."""
_DEEPEST = 6
"""A frame's variable, a source in it, its queue: each an object and its attributes."""


def contains_name(value: object, name: str, depth: int = 0) -> bool:
    """Whether it is the name or contains it: a queue, a plan of one, a list of them."""
    if isinstance(value, str):
        return value == name
    if depth > _DEEPEST:
        return False
    if isinstance(value, dict):
        return any(contains_name(one, name, depth + 1) for one in list(value.values())[:40])
    if isinstance(value, tuple | list):
        return any(contains_name(one, name, depth + 1) for one in value[:40])
    if type(value).__module__.partition(".")[0] != "console":
        return False
    return contains_name(getattr(value, "__dict__", {}), name, depth + 1)


@contextmanager
def files_on_call_path(name: str, *threads: str) -> Iterator[set[str]]:
    """The files found while the block runs; if threads are named, only in these."""
    found: set[str] = set()

    def sent(*_: object) -> None:
        if threads and threading.current_thread().name not in threads:
            return
        frame: FrameType | None = sys._getframe(1)
        files: list[str] = []
        while frame is not None:
            path = Path(frame.f_code.co_filename)
            if path.is_relative_to(ROOT) and contains_name(frame.f_locals, name):
                files.append(path.relative_to(ROOT).as_posix())
            frame = frame.f_back
        found.update(files)

    event.listen(Engine, "before_cursor_execute", sent)
    try:
        yield found
    finally:
        event.remove(Engine, "before_cursor_execute", sent)
