"""Colours by what they mean: the code has the words, the style sheet the colours."""

from rich.style import Style
from textual.widget import Widget

from console.config.kinds import COLORS

NAMES = (
    "good",
    "critical",
    "warning",
    "quiet",
    "stale",
    "trend",
    "sorted",
    "strong",
    "production",
    "paused",
    "group",
    *(f"mark-{color}" for color in COLORS),
)
TONE_CLASSES = {f"tone--{name}" for name in NAMES}
"""The COMPONENT_CLASSES of a widget that styles text of its own."""


MARK = "▌"
"""Before a connection's name, in the colour that it is given."""


def tone(widget: Widget, name: str) -> Style:
    """The style of a tone; where the sheet gives it no background, the widget's own shows."""
    if not name:
        return Style.null()
    return widget.get_component_rich_style(f"tone--{name}", partial=True)
