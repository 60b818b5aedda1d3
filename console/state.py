"""Where this machine keeps what the console remembers."""

import os
from pathlib import Path

LOG_LEVELS = ("debug", "info", "warning", "error")
"""What the log file can have: from this on."""


def folder() -> Path:
    """The console's own folder in the state of this user; it need not be there yet."""
    base = os.environ.get("XDG_STATE_HOME", "")
    root = Path(base) if base.startswith("/") else Path.home() / ".local" / "state"
    return root / "dbq-console"
