"""Where this machine keeps what the console remembers."""

import os
from pathlib import Path


def folder() -> Path:
    """The console's own folder in the state of this user; it need not be there yet."""
    base = os.environ.get("XDG_STATE_HOME", "")
    root = Path(base) if base.startswith("/") else Path.home() / ".local" / "state"
    return root / "dbq-console"
