"""Who waits for whom, as a tree with a cursor; and those who neither wait nor are waited for."""

from collections.abc import Iterator

from console.formats import UNKNOWN, duration
from console.monitor import wait_words as words
from console.monitor.activity import Activity, Key, Session
from console.monitor.forest import Node
from console.tui.text import plain
from console.tui.widgets.fitting import Wish
from console.tui.widgets.keeping import as_left, keys_with
from console.tui.widgets.keyed_table import Cell
from console.tui.widgets.list_table import ListTable

_WISHES = (
    Wish("session", "session", least=12, most=40),
    Wish("for", "for", least=9, most=10, right=True),
    Wish("does", "does", least=20, most=80),
    Wish("who", "who", least=12, most=200),
)
_LOST_FIRST = ("who",)
_DEEPEST = 12
"""So far the branches are drawn; what is deeper stands there all the same."""


class WaitsTree(ListTable):
    """A line each session: whoever holds up most first, its waiters below it."""

    def __init__(self) -> None:
        super().__init__(_WISHES, _LOST_FIRST, id="waits-tree")
        self._sessions: dict[str, Session] = {}
        self._rows: dict[str, dict[str, Cell]] = {}

    @property
    def session(self) -> Session | None:
        """The session under the cursor."""
        return self._sessions.get(self.cursor_key or "")

    def show_activity(self, activity: Activity) -> None:
        """Show the sessions of this moment."""
        before, rows = self._sessions, self._rows
        self._sessions, self._rows = {}, {}
        for node, branch in _lines(activity.trees):
            self._add(activity.by_key[node.key], branch, deadlock=node.cut, waited=True)
        for session in activity.concerned:
            if repr(session.key) not in self._sessions:
                self._add(session, "", deadlock=False, waited=False)
        order = keys_with([*self._rows], [*rows], {self.cursor_key})
        self._sessions = {key: self._sessions.get(key) or before[key] for key in order}
        self._rows = {key: self._rows.get(key) or as_left(rows[key], "does") for key in order}
        self.show_rows(self._rows)

    def _add(self, session: Session, branch: str, *, deadlock: bool, waited: bool) -> None:
        name = str(session.key) if isinstance(session.key, int) else words.title(session)
        doing = f"DEADLOCK: {words.doing(session)}" if deadlock else words.doing(session)
        waits = session.wait_seconds if session.waits_for else session.transaction_seconds
        tone = "critical" if deadlock else "warning" if waited and not session.blocked_by else ""
        self._sessions[repr(session.key)] = session
        self._rows[repr(session.key)] = {
            "session": Cell(branch + plain(name), "strong" if waited else "quiet"),
            "for": Cell(UNKNOWN if waits is None else duration(max(waits, 0.0))),
            "does": Cell(plain(doing), tone),
            "who": Cell(plain(words.who(session)), "quiet"),
        }


def _lines(trees: tuple[Node[Key], ...]) -> Iterator[tuple[Node[Key], str]]:
    """Every node with the branch before it, from the top; as deep as it may go."""
    left: list[tuple[Node[Key], str, str]] = [(tree, "", "") for tree in reversed(trees)]
    while left:
        node, branch, below = left.pop()
        yield node, branch
        deep = len(below) >= 3 * _DEEPEST
        last = len(node.waiters) - 1
        for place, waiter in reversed(list(enumerate(node.waiters))):
            here = below + ("└─ " if place == last else "├─ ")
            under = below if deep else below + ("   " if place == last else "│  ")
            left.append((waiter, here, under))
