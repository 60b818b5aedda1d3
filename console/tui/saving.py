"""A payload written to a file of its own, which nobody else may read."""

import os
import re
from pathlib import Path

from console.actions.audit import local_file
from console.errors import UsageError

_UNFIT = re.compile(r"[^A-Za-z0-9._-]+")


def folder() -> Path:
    """Where such files go unless one says another place: the downloads, else the console's own."""
    downloads = Path.home() / "Downloads"
    return downloads if downloads.is_dir() else local_file().parent / "payloads"


def suggestion(queue: str, message: str, ending: str) -> Path:
    """A path for the payload of a message."""
    name = _UNFIT.sub("_", f"{queue}-{message}")[:100].strip("._") or "payload"
    return folder() / f"{name}.{ending}"


def save(path: Path, payload: str | bytes) -> int:
    """Write it to a new file; its size. UsageError where that cannot be or there is one."""
    data = payload if isinstance(payload, bytes) else payload.encode(errors="surrogatepass")
    path = path.expanduser()
    try:
        if path.parent == folder():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
    except FileExistsError:
        raise UsageError(
            f"{path} is there already.", next_step="Nothing was written: choose another name."
        ) from None
    except (OSError, ValueError) as error:
        raise UsageError(f"Could not write {path}.", why=str(error)) from error
    return len(data)
