"""Help: the keys of the screen that it was opened from, then the topics, a page each."""

from collections.abc import Iterable
from typing import Any, ClassVar

from rich.table import Table
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import ActiveBinding, Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen, Screen
from textual.widget import Widget
from textual.widgets import Static

from console.figures import ERRORS, SHOWN
from console.help import topics
from console.tui.context import Closable

_LEGEND = (
    ("✖", "critical: messages lost, full, over a limit, or not reachable"),
    ("!", "warning: stuck claims, errors, nearly full, or not readable"),
    ("·", "does not apply to this design"),
    ("?", "not known"),
    ("≈", "an estimate"),
    ("≥", "of several queues: at least that; not known for all of them"),
)


_DIGITS = "1234567890"
"""The keys of the first ten topics."""


class HelpScreen(Closable, ModalScreen[None]):
    """The keys, the legend and the topics."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "back", "back to the keys, then close the help", show=False),
        Binding("question_mark,f1", "dismiss", "close the help", show=False),
        Binding("right,tab", "next_topic(1)", "the next topic", show=False),
        Binding("left,shift+tab", "next_topic(-1)", "the previous topic", show=False),
        *(Binding(key, f"open({at})", show=False) for at, key in enumerate(_DIGITS, 1)),
        Binding("down,j", "scroll('down')", "down", show=False),
        Binding("up,k", "scroll('up')", "up", show=False),
    ]

    def __init__(
        self, bindings: Iterable[ActiveBinding], filters: Iterable[tuple[str, str]] = ()
    ) -> None:
        """`filters`: the syntax of the screen's filter, if it has one."""
        super().__init__()
        self._keys = keys_of(bindings)
        self._filters = tuple(filters)
        self._page = 0
        """0 the keys, then the topics in their order."""

    @classmethod
    def of(cls, screen: Screen[Any]) -> "HelpScreen":
        return cls(screen.active_bindings.values(), filters_of(screen))

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="help") as panel:
            panel.border_title = "Help"
            panel.border_subtitle = _KEYS_SUBTITLE
            yield Static(self._table(), id="help-keys")

    def _table(self) -> Table:
        table = Table.grid(padding=(0, 3))
        table.add_column(no_wrap=True, style="bold")
        table.add_column()
        parts: list[tuple[tuple[str, str], ...]] = [tuple(self._keys), _LEGEND]
        parts += [self._filters] if self._filters else []
        parts.append(_command_lines())
        digits = _DIGITS.ljust(len(topics()))
        parts.append(
            tuple(
                (digit, f"{topic.name}: {topic.summary}")
                for digit, topic in zip(digits, topics().values(), strict=True)
            )
        )
        for at, part in enumerate(parts):
            if at:
                table.add_row("", "")
            for keys, text in part:
                table.add_row(Text(keys), Text(text))
        return table

    async def action_open(self, page: int) -> None:
        """A topic by its number; 0: the keys."""
        from textual.widgets import Markdown  # noqa: PLC0415  # so that the console starts at once

        pages = list(topics().values())
        if page > len(pages):
            return
        self._page = page
        panel = self.query_one("#help", VerticalScroll)
        async with self.batch():
            await panel.query(Markdown).remove()
            self.query_one("#help-keys").display = page == 0
            if page:
                await panel.mount(Markdown(pages[page - 1].text, open_links=False))
        panel.set_class(page > 0, "-topic")
        panel.border_title = f"Help: {pages[page - 1].name}" if page else "Help"
        panel.border_subtitle = _TOPIC_SUBTITLE if page else _KEYS_SUBTITLE
        panel.scroll_home(animate=False, immediate=True)

    async def action_next_topic(self, step: int) -> None:
        await self.action_open((self._page + step) % (len(topics()) + 1))

    async def action_back(self) -> None:
        if self._page:
            await self.action_open(0)
        else:
            self.dismiss()

    def action_scroll(self, direction: str) -> None:
        panel = self.query_one("#help")
        if not panel.size:  # not laid out yet
            self.after_refresh(self.action_scroll, direction)
            return
        # Not animated: keys in quick succession add up.
        panel.scroll_relative(y=1 if direction == "down" else -1, animate=False, immediate=True)


_KEYS_SUBTITLE = "→ topics · Escape closes"
_TOPIC_SUBTITLE = "← → topics · Escape: the keys"

_QUEUE_FILTERS = (
    ("/ mail", "mail in the name, design, schema or connection"),
    ("/ design=ring", "also queue~x schema= connection= state=warning"),
    ("/ errors>0", f"also {' '.join(of.title for of in SHOWN if of is not ERRORS)}"),
)
_MESSAGE_FILTERS = (
    ("/ state=error", "the messages of one state"),
    ("/ older=10m", "or newer=10m: time in state"),
    ('/ error~"no route"', "text of the error"),
    ("/ id=17", "also claimed_by=WHO, payload.customer.id=42"),
)


def filters_of(screen: Screen[Any]) -> tuple[tuple[str, str], ...]:
    """The syntax of the screen's filter."""
    given: tuple[tuple[str, str], ...] | None = getattr(screen, "FILTERS", None)
    if given is not None:
        return given
    names = {type(domnode).__name__ for domnode in screen.walk_children()}
    if "QueueTable" in names:
        return _QUEUE_FILTERS
    return _MESSAGE_FILTERS if "MessagesTab" in names else ()


def _command_lines() -> tuple[tuple[str, str], ...]:
    from console.tui.commands import COMMANDS  # noqa: PLC0415  # so that the console starts at once

    return tuple(
        (
            f":{command.name}",
            f"{command.usage} · {command.summary}" if command.usage else command.summary,
        )
        for command in COMMANDS
    )


def keys_of(bindings: Iterable[ActiveBinding]) -> list[tuple[str, str]]:
    """Keys and what they do, one line for each action, in the order of the key map."""
    by_text: dict[str, list[str]] = {}
    for _, binding, enabled, _ in sorted(bindings, key=_rank):
        ours = not binding.action.startswith(("app.", "screen."))
        if ours and enabled and binding.description:
            text = binding.tooltip or binding.description
            by_text.setdefault(text, []).append(_key_name(binding))
    return [(_joined([*dict.fromkeys(keys)]), text) for text, keys in by_text.items()]


def _joined(keys: list[str]) -> str:
    """`1-9` for all digits."""
    digits = len(keys) > 1 and all(key.isdigit() for key in keys)
    return f"{keys[0]}-{keys[-1]}" if digits else " ".join(keys)


def _rank(binding: ActiveBinding) -> int:
    """Keys of the tab first, then the screen's, then those that move the cursor of a widget."""
    if isinstance(binding.node, (Screen, App)):
        return 1
    return 2 if isinstance(binding.node, Widget) and binding.node.can_focus else 0


def _key_name(binding: Binding) -> str:
    names = {"pageup": "PgUp", "pagedown": "PgDn", "slash": "/", "colon": ":", "question_mark": "?"}
    names |= {"plus": "+", "equals_sign": "=", "minus": "-", "up": "↑", "down": "↓"}
    names |= {"right_square_bracket": "]", "left_square_bracket": "[", "asterisk": "*"}
    key = names.get(binding.key, binding.key)
    if key.startswith("ctrl+"):
        return "Ctrl-" + key.removeprefix("ctrl+").upper()
    return key if len(key) == 1 else key[:1].upper() + key[1:]
