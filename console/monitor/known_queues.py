"""The queue names of each connection, kept in this user's state for shell completion."""

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from console import state

_MOST = 10_000
"""Names of one connection."""


_written: dict[Path, list[str]] = {}
"""What this process has written, so that not each sample writes."""


def folder() -> Path:
    return state.folder() / "queues"


def keep(connection: str, names: Iterable[str]) -> None:
    """Errors are ignored: then nothing is completed."""
    # A shell has one candidate per line.
    found = sorted(name for name in set(names) if name.isprintable())[:_MOST]
    path = _path(connection)
    if _written.get(path) == found:
        return
    _written[path] = found
    text = json.dumps({"connection": connection, "queues": found}, ensure_ascii=False)
    with suppress(OSError, ValueError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Replaced as a whole: others may read it at any time.
        descriptor, new = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        Path(new).replace(path)


def names(connection: str | None = None) -> list[str]:
    if connection is not None:
        return _read(_path(connection)) or []
    found: set[str] = set()
    with suppress(OSError):
        for path in folder().glob("*.json"):
            found.update(_read(path) or [])
    return sorted(found)


def _path(connection: str) -> Path:
    digest = hashlib.sha256(connection.encode("utf-8", "surrogatepass")).hexdigest()
    return folder() / f"{digest[:24]}.json"


def _read(path: Path) -> list[str] | None:
    with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        found = json.loads(path.read_text(encoding="utf-8"))["queues"]
        return [one for one in found if isinstance(one, str)]
    return None
