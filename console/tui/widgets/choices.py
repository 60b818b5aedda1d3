"""A list of a dialog's choices."""

from textual.widgets import OptionList


class Choices(OptionList):
    """Textual's own pages through a list that has no room, and dies of it."""

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """It is paged through once it is laid out."""
        if action in {"page_up", "page_down"}:
            return bool(self.scrollable_content_region)
        return super().check_action(action, parameters)
