"""What opens when nothing is configured: how to give the console a database."""

from pathlib import Path
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Center, Middle
from textual.screen import Screen
from textual.widgets import Footer, Static

from console.tui.text import plain

_WORDS = """\
No connection is configured.

Open one database:

    dbq-console --url postgresql+psycopg://user@host:5432/database

or put that URL into the environment:

    export DBQ_URL=postgresql+psycopg://user@host:5432/database

Try it first, on a server and queues of its own:

    dbq-console demo"""


class ConnectionsScreen(Screen[None]):
    """An example and, where there is one, the path of the configuration file."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "out", "out", show=False, tooltip="one level out; never quits"),
    ]

    def __init__(self, config_path: Path | None = None) -> None:
        super().__init__()
        self._config_path = config_path

    def compose(self) -> ComposeResult:
        """One panel in the middle."""
        words = _WORDS
        if self._config_path is not None:
            words += f"\n\nConnections are kept in:\n\n    {plain(str(self._config_path))}"
        with Middle(), Center():
            panel = Static(Text(words), id="welcome")
            panel.border_title = "dbq-console"
            yield panel
        yield Footer(show_command_palette=False)

    def action_out(self) -> None:
        """There is nothing further out: only Ctrl-Q quits."""
