"""How screens open each other, without importing each other.

Each is imported when it is first opened, so that the console starts at once.
"""

from collections.abc import Mapping, Sequence

from textual.app import App

from console.catalog import Queue
from console.tui.context import Context
from console.tui.dialogs.dialog import RunningDialog
from console.tui.findings import QueueKey
from console.tui.text import plain
from console.views.doctor import FindingView


class Navigator(App[None]):
    """The part of the application that opens screens."""

    context: Context

    def can(self, what: str, doing: str = "") -> bool:
        """Whether the source of the readings can; if not, the operator is told why."""
        if not (why := self.context.lacks.get(what, "")):
            return True
        text = f"{doing}: {why[0].lower()}{why[1:]}" if doing else why
        self.notify(plain(text), severity="warning", markup=False, timeout=4)
        return False

    def open_messages(self, key: QueueKey, words: Sequence[str] = ()) -> None:
        """A queue's messages, with a filter."""
        from console.tui.screens.queue import QueueScreen  # noqa: PLC0415

        self.open_queue(key, "messages")
        if words and isinstance(self.screen, QueueScreen):
            self.screen.filter_messages(words)

    def open_queue(self, key: QueueKey, tab: str = "") -> None:
        """A queue's screen, on one of its tabs."""
        from console.tui.screens.queue import QueueScreen  # noqa: PLC0415

        current = self.screen
        if isinstance(current, QueueScreen) and current.key == key:
            # Opened from one of its findings, for example: Escape must not lead through it twice.
            current.show_tab(tab)
        else:
            self.push_screen(QueueScreen(self.context, key, tab))

    def open_finding(self, finding: FindingView) -> None:
        """A finding as it was shown: its evidence and its repair."""
        from console.tui.dialogs.finding import FindingDialog  # noqa: PLC0415

        self.push_screen(FindingDialog(self.context, finding))

    def open_message(self, key: QueueKey, message: str) -> None:
        """One message, by its key on a page of messages."""
        if not self.can("messages"):
            return
        from console.tui.screens.message import MessageScreen  # noqa: PLC0415

        self.push_screen(MessageScreen(self.context, key, message))

    def open_waits(self, connection: str) -> None:
        """What a server's sessions wait for."""
        if not self.can("waits"):
            return
        from console.tui.tabs.tab import ListScreen  # noqa: PLC0415
        from console.tui.tabs.waits import WaitsTab  # noqa: PLC0415

        self.push_screen(ListScreen(self.context, WaitsTab, (connection, "", "")))

    def open_list(self, name: str, key: QueueKey) -> None:
        """A list that has no screen of its own. `key`: with empty names where there is none."""
        if not self.can(name):
            return
        from console.tui.tabs.tab import ListScreen, tab_of  # noqa: PLC0415
        from console.views import get_view  # noqa: PLC0415

        self.push_screen(ListScreen(self.context, tab_of(get_view(name)), key))

    def open_actions(self, key: QueueKey, words: Sequence[str] = (), state: str = "") -> None:
        """The verbs of a queue. `words`: filters for the form; `state`: the state of all messages
        that are meant, if known."""
        if not self.can("verbs"):
            return
        from console.tui.dialogs.verbs import VerbsDialog  # noqa: PLC0415

        self.push_screen(VerbsDialog(self.context, key, words, state))

    def open_action(
        self,
        key: QueueKey,
        verb: str,
        words: Sequence[str] = (),
        queue: Queue | None = None,
        /,
        **options: str,
    ) -> None:
        """One verb's form. `options`: its other fields, by the command line's names; `queue`: its
        catalog entry, if it was just looked up."""
        if not self.can("verbs", verb):
            return
        from console.tui.screens.planned import ActionScreen  # noqa: PLC0415

        self.push_screen(ActionScreen(self.context, key, verb, words, options, queue=queue))

    def open_planned(self, key: QueueKey, verb: str, texts: Mapping[str, str]) -> None:
        """One verb's plan, with these values of its form."""
        if not self.can("verbs", verb):
            return
        from console.tui.screens.planned import ActionScreen  # noqa: PLC0415

        self.push_screen(ActionScreen(self.context, key, verb, options=texts, at_once=True))

    def open_running(self, number: int = 0) -> None:
        """A running action; 0: the only one, or a choice of several."""
        runs = self.context.action_runs.all
        running = (
            self.context.action_runs.get(number) if number else runs[0] if len(runs) == 1 else None
        )
        if running is not None:
            self.push_screen(running.screen_of(running))
        elif runs:
            self.push_screen(RunningDialog(self.context))
        else:
            self.notify("No action is running here.", timeout=3)

    def open_audit(self, connection: str = "", key: QueueKey | None = None) -> None:
        """Who did what: everywhere, on a connection, to a queue."""
        if not self.can("audit"):
            return
        from console.tui.screens.audit import AuditScreen  # noqa: PLC0415

        self.push_screen(AuditScreen(self.context, connection, key))

    def open_install(self, connection: str, **options: str) -> None:
        """A new queue. `options`: the form's fields, by the command line's names."""
        if not self.can("verbs"):
            return
        from console.tui.screens.install import InstallScreen  # noqa: PLC0415

        self.push_screen(InstallScreen(self.context, connection, options))

    def open_smoke(self, key: QueueKey, **options: str) -> None:
        """A trial of the queue's design."""
        if not self.can("verbs"):
            return
        from console.tui.screens.smoke import SmokeScreen  # noqa: PLC0415

        self.push_screen(SmokeScreen(self.context, key, options))

    def open_connections(self) -> None:
        from console.tui.screens.connections import ConnectionsScreen  # noqa: PLC0415

        self.push_screen(ConnectionsScreen(self.context))
