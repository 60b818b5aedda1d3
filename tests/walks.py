"""How far a queue's name goes: the files that a reader of `requeue NAME` has to open.

Counted are the files of `console/` with a frame that holds the name, or what was made of it (a
queue, a target, a plan, a source), whenever a statement is sent between the request and its end:
what lies between the word that was typed and the SQL, and what its answer comes back through. What
was called on the way and has returned (a figure's words, a state's name) is not.
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
MOST = 10
"""A change may have fewer."""
_DEEPEST = 6
"""A frame, what it holds, a source in that, its queue: each a value and its attributes."""


def holds(value: object, name: str, depth: int = 0) -> bool:
    """Whether it is the name, or something that has it: a queue, a plan of one, a list of them."""
    if isinstance(value, str):
        return value == name
    if depth > _DEEPEST:
        return False
    if isinstance(value, dict):
        return any(holds(one, name, depth + 1) for one in list(value.values())[:40])
    if isinstance(value, tuple | list):
        return any(holds(one, name, depth + 1) for one in value[:40])
    if type(value).__module__.partition(".")[0] != "console":
        return False
    return holds(getattr(value, "__dict__", {}), name, depth + 1)


@contextmanager
def walked(name: str, *threads: str) -> Iterator[set[str]]:
    """The files, while the block runs; of these threads alone, where any are named."""
    found: set[str] = set()

    def sent(*_: object) -> None:
        if threads and threading.current_thread().name not in threads:
            return
        frame: FrameType | None = sys._getframe(1)
        on_the_way: list[str] = []
        while frame is not None:
            path = Path(frame.f_code.co_filename)
            if path.is_relative_to(ROOT) and holds(frame.f_locals, name):
                on_the_way.append(path.relative_to(ROOT).as_posix())
            frame = frame.f_back
        found.update(on_the_way)

    event.listen(Engine, "before_cursor_execute", sent)
    try:
        yield found
    finally:
        event.remove(Engine, "before_cursor_execute", sent)
