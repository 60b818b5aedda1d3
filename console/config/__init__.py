"""Connections, rights, thresholds and how things are shown: what people configure.

Each value knows where it comes from. A later one of these wins: the default, the file (its top,
the profile, the queue), the environment, the command line. Secrets are looked up when a connection
is opened and never before; what shows a value shows them as `***`.
"""

from console.config.configuration import (
    CommandLineValues,
    Configuration,
    ConfigurationError,
    file_path,
    load,
)
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
    "CommandLineValues",
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
