"""Connections, rights, thresholds and how things are shown: what people configure.

Each value knows where it comes from. A later one of these wins: the default, the file (its top,
the profile, the queue), the environment, the command line. Secrets are looked up when a connection
is opened and never before; what shows a value shows them as `***`.
"""

from console.config.configuration import (
    Configuration,
    ConfigurationError,
    Said,
    load,
    place,
)
from console.config.keys import DISPLAY_ZONE, KEYS, LOG_FILE, LOG_LEVEL, RIGHTS, THEME
from console.config.profile import Limits, Profile, Settings, Thresholds
from console.config.values import Key, Level, Origin, Source, Value

__all__ = [
    "DISPLAY_ZONE",
    "KEYS",
    "LOG_FILE",
    "LOG_LEVEL",
    "RIGHTS",
    "THEME",
    "Configuration",
    "ConfigurationError",
    "Key",
    "Level",
    "Limits",
    "Origin",
    "Profile",
    "Said",
    "Settings",
    "Source",
    "Thresholds",
    "Value",
    "load",
    "place",
]
