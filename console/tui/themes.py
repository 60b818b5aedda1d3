"""The colours: dark, light, and of the highest contrast. NO_COLOR has none at all."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from textual.theme import Theme

from console.monitor.saved import Saved

DARK = Theme(
    name="dark",
    primary="#5aa9d6",
    secondary="#7f9bb0",
    accent="#5aa9d6",
    foreground="#d0d6dc",
    background="#12161b",
    surface="#12161b",
    panel="#1c232b",
    success="#7fb77e",
    warning="#e0af52",
    error="#f0696b",
    dark=True,
    # What is not the point stays readable, but stands back.
    variables={
        "quiet": "#8d98a3",
        "faint": "#6b7681",
        "trend": "#4f7f9f",
        "cursor": "#26475b",
        "mark-red": "#f0696b",
        "mark-orange": "#ee9450",
        "mark-yellow": "#e3cf5a",
        "mark-green": "#7fb77e",
        "mark-cyan": "#55c5cc",
        "mark-blue": "#6a9df2",
        "mark-purple": "#b593f0",
        "mark-pink": "#ee8dc4",
        "mark-grey": "#98a2ad",
    },
)
LIGHT = Theme(
    name="light",
    primary="#1f6a99",
    secondary="#4d6475",
    accent="#1f6a99",
    foreground="#1c232b",
    background="#f7f8f9",
    surface="#f7f8f9",
    panel="#e6eaee",
    success="#2c7a2b",
    warning="#8a5a00",
    error="#b3191c",
    dark=False,
    variables={
        "quiet": "#55606b",
        "faint": "#6b7681",
        "trend": "#2f6f97",
        "cursor": "#bcd9ea",
        "mark-red": "#b3191c",
        "mark-orange": "#b85c00",
        "mark-yellow": "#8a7200",
        "mark-green": "#2c7a2b",
        "mark-cyan": "#00767d",
        "mark-blue": "#1f5fb3",
        "mark-purple": "#6d3fb3",
        "mark-pink": "#b0287a",
        "mark-grey": "#6b7681",
    },
)
CONTRAST = Theme(
    name="contrast",
    primary="#00d7ff",
    secondary="#ffffff",
    accent="#00d7ff",
    foreground="#ffffff",
    background="#000000",
    surface="#000000",
    panel="#1a1a1a",
    success="#00ff5f",
    warning="#ffd700",
    error="#ff5f5f",
    dark=True,
    variables={
        "quiet": "#d0d0d0",
        "faint": "#b0b0b0",
        "trend": "#00d7ff",
        "cursor": "#005f87",
        "mark-red": "#ff5f5f",
        "mark-orange": "#ffaf00",
        "mark-yellow": "#ffff5f",
        "mark-green": "#00ff5f",
        "mark-cyan": "#00ffff",
        "mark-blue": "#5fafff",
        "mark-purple": "#d787ff",
        "mark-pink": "#ff87d7",
        "mark-grey": "#c0c0c0",
    },
)
THEMES = (DARK, LIGHT, CONTRAST)


@dataclass(frozen=True)
class Taste:
    """How somebody wants the screens, by the configuration."""

    theme: str = DARK.name
    colors: Mapping[str, str] = field(default_factory=dict)
    """Connection -> the mark beside its name. It is nothing where there are no colours."""
    saved: Saved = field(default_factory=Saved)
    """The filters that have names."""


DEFAULT_TASTE = Taste()
