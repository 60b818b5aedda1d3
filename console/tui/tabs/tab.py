"""What all tabs of a queue have in common: they ask only while they are seen."""

from typing import ClassVar

from textual.containers import Vertical

from console.tui.board import Key, QueueView
from console.tui.desk import Desk, Ways
from console.tui.places import Place


class QueueTab(Vertical):
    """One tab. Its queue is given by key: what has that key is what it shows, and acts on."""

    NAME: ClassVar[str] = ""
    """As `open_queue` and tests name it."""
    TITLE: ClassVar[str] = ""
    TWIN: ClassVar[str] = "status"
    """The command that shows the same; a tab whose words are its own binds `o` itself."""
    EVERY_SECONDS: ClassVar[float] = 5.0
    """How often `look` is called while the tab is in sight."""
    HAS_CHARTS: ClassVar[bool] = False
    """Whether it takes the room of the screen's charts for charts of its own."""

    def __init__(self, desk: Desk, key: Key) -> None:
        super().__init__(id=f"tab-{self.NAME}")
        self.desk = desk
        self.key = key
        self.shown = False
        """Whether it is the tab in sight, of a screen in sight. Its screen keeps this."""

    @classmethod
    def applies(cls, view: QueueView) -> bool:  # noqa: ARG003  # most apply to every queue
        """Whether a queue has such a tab."""
        return True

    @property
    def is_whole(self) -> bool:
        """Whether its parts are there: not before it is made, nor while its screen is closed."""
        return self.is_mounted and bool(self.children)

    @property
    def place(self) -> Place | None:
        """The queue's connection."""
        return self.desk.place(self.key)

    @property
    def ways(self) -> Ways:
        """Where one can go from here."""
        return self.desk.ways

    def look(self) -> None:
        """Ask what it shows: when it comes into sight, now and then, and when `r` is pressed.

        It only starts a job (`console.tui.jobs`); the answer draws.
        """

    def draw(self, view: QueueView | None, *, paused: bool) -> None:
        """The board has something new; None: the queue is gone."""
