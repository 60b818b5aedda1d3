"""What the tabs with lists share: who has the keys at first, and what there is room for."""

from textual.widget import Widget

from console.tui.widgets.tab_line import TabLine

DETAIL_FROM = 18
"""On a screen of fewer lines than these a list needs the lines of what is said below it."""


def take_keys(tab: Widget, first: Widget) -> None:
    """Its screen looked for somebody to take them before there was anybody."""
    shown = all(one.display for one in tab.ancestors_with_self if isinstance(one, Widget))
    if shown and isinstance(tab.screen.focused, TabLine | None):
        tab.screen.set_focus(first)
