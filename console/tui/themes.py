"""The colours: dark, light, and of the highest contrast. NO_COLOR has none at all."""

from textual.theme import Theme

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
    variables={"quiet": "#8d98a3", "faint": "#6b7681", "trend": "#4f7f9f", "cursor": "#26475b"},
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
    variables={"quiet": "#55606b", "faint": "#6b7681", "trend": "#2f6f97", "cursor": "#bcd9ea"},
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
    variables={"quiet": "#d0d0d0", "faint": "#b0b0b0", "trend": "#00d7ff", "cursor": "#005f87"},
)
THEMES = (DARK, LIGHT, CONTRAST)
