"""Lines in the colours of what they mean."""

from typing import ClassVar

from console.tui.widgets.lines import Lines
from console.tui.widgets.tones import TONE_CLASSES


class Words(Lines):
    """Each tone costs a look into the style sheet at every restyling: not all lines have any."""

    COMPONENT_CLASSES: ClassVar[set[str]] = TONE_CLASSES
