"""The configuration: connections, rights, thresholds, display.

Each value has its origin; a later one of these overrides: the default, the file (its top, the
profile, the queue), the environment, the command line. Secrets are looked up only when a connection
is opened, and shown as `***`.
"""

from console.config.configuration import Configuration, ConfigurationError, file_path, load
from console.config.profile import (
    DISPLAY_ZONE,
    KEYS,
    LOG_FILE,
    LOG_LEVEL,
    RIGHTS,
    THEME,
    Limits,
    Profile,
    Settings,
    Thresholds,
)
from console.config.values import ConfigKey, KeyLevel, Origin, Value, ValueSource

__all__ = [
    "DISPLAY_ZONE",
    "KEYS",
    "LOG_FILE",
    "LOG_LEVEL",
    "RIGHTS",
    "THEME",
    "ConfigKey",
    "Configuration",
    "ConfigurationError",
    "KeyLevel",
    "Limits",
    "Origin",
    "Profile",
    "Settings",
    "Thresholds",
    "Value",
    "ValueSource",
    "file_path",
    "load",
]
