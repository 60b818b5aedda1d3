"""The folders of the console's state and configuration on this machine."""

import os
from collections.abc import Mapping
from pathlib import Path

LOG_LEVELS = ("debug", "info", "warning", "error")
"""The least severe records in the log file."""


def folder() -> Path:
    """The console's folder in this user's state folder; it may not exist yet."""
    base = os.environ.get("XDG_STATE_HOME", "")
    root = Path(base) if base.startswith("/") else Path.home() / ".local" / "state"
    return root / "dbq-console"


def configuration_folder(environment: Mapping[str, str] | None = None) -> Path | None:
    """The console's folder in this user's configuration, by the XDG rule; None without a home."""
    given = os.environ if environment is None else environment
    base = Path(given.get("XDG_CONFIG_HOME", ""))
    if not base.is_absolute():  # to be ignored by the XDG rule
        try:
            base = Path(given.get("HOME") or Path.home()) / ".config"
        except RuntimeError:  # a user without a home, as in some containers
            return None
    return base / "dbq-console"
