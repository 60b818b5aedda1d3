"""Where this machine keeps what the console remembers, and what its user has set."""

import os
from collections.abc import Mapping
from pathlib import Path

LOG_LEVELS = ("debug", "info", "warning", "error")
"""What the log file can have: from this on."""


def folder() -> Path:
    """The console's own folder in the state of this user; it need not be there yet."""
    base = os.environ.get("XDG_STATE_HOME", "")
    root = Path(base) if base.startswith("/") else Path.home() / ".local" / "state"
    return root / "dbq-console"


def configuration_folder(environment: Mapping[str, str] | None = None) -> Path | None:
    """The console's own folder in the configuration of this user, by the XDG rule; None: a user
    without a home has none."""
    given = os.environ if environment is None else environment
    base = Path(given.get("XDG_CONFIG_HOME", ""))
    if not base.is_absolute():  # then it is to be ignored, says the rule
        try:
            base = Path(given.get("HOME") or Path.home()) / ".config"
        except RuntimeError:  # a user without a home, as in some containers
            return None
    return base / "dbq-console"
