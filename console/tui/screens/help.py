"""Help, made from the key map that was in force when it was asked for."""

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

_LEGEND = (
    ("✖", "critical: messages lost, full or past a limit, not to be reached"),
    ("!", "warning: stuck claims, errors, nearly full, not to be looked at"),
    ("·", "does not apply to this design"),
    ("?", "not known"),
    ("≈", "an estimate"),
)


class HelpScreen(ModalScreen[None]):
    """Every key that does something here, and what the marks mean."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark,f1", "dismiss", "close the help", show=False),
        Binding("down,j", "scroll('down')", "down", show=False),
        Binding("up,k", "scroll('up')", "up", show=False),
    ]

    def __init__(
        self,
        bindings: Iterable[ActiveBinding],
        filters: Iterable[tuple[str, str]] = (),
    ) -> None:
        """`filters`: the language of the screen's filter, if it has one."""
        super().__init__()
        self._keys = keys_of(bindings)
        self._filters = tuple(filters)

    @classmethod
    def of(cls, screen: Screen[Any]) -> "HelpScreen":
        """The help of a screen, as its keys are now."""
        return cls(screen.active_bindings.values(), filters_of(screen))

    def compose(self) -> ComposeResult:
        """One panel that scrolls where the terminal is small."""
        with VerticalScroll(id="help") as panel:
            panel.border_title = "Help"
            panel.border_subtitle = "Escape closes"
            yield Static(self._table())

    def _table(self) -> Table:
        table = Table.grid(padding=(0, 3))
        table.add_column(no_wrap=True, style="bold")
        table.add_column()
        parts: list[tuple[tuple[str, str], ...]] = [tuple(self._keys), _LEGEND]
        parts += [self._filters] if self._filters else []
        parts.append(_command_lines())
        for at, part in enumerate(parts):
            if at:
                table.add_row("", "")
            for keys, words in part:
                table.add_row(Text(keys), Text(words))
        return table

    def action_scroll(self, way: str) -> None:
        """A line up or down."""
        panel = self.query_one("#help")
        # At once: of keys that come together each begins where the one before has ended.
        panel.scroll_relative(y=1 if way == "down" else -1, animate=False, immediate=True)


_QUEUE_FILTERS = (
    ("/ mail", "mail in the name, design, schema or connection"),
    ("/ design:ring", "also queue: schema: connection: state:warning"),
    ("/ errors:>0", "also ready age push/s pop/s gap claimed stuck done"),
)
_MESSAGE_FILTERS = (
    ("/ state=error", "the messages of one state"),
    ("/ older=10m", "or newer=10m: since they are in their state"),
    ('/ error~"no route"', "what their error says"),
    ("/ id=17", "also claimed_by=WHO, payload.customer.id=42"),
)


def filters_of(screen: Screen[Any]) -> tuple[tuple[str, str], ...]:
    """The language of the filter that the screen has, by what is on it."""
    given: tuple[tuple[str, str], ...] | None = getattr(screen, "FILTERS", None)
    if given is not None:
        return given
    names = {type(one).__name__ for one in screen.walk_children()}
    if "QueueTable" in names:
        return _QUEUE_FILTERS
    return _MESSAGE_FILTERS if "MessagePane" in names else ()


def _command_lines() -> tuple[tuple[str, str], ...]:
    from console.tui.commands import COMMANDS  # noqa: PLC0415  # the console shall start at once

    return tuple(
        (f":{one.name}", f"{one.usage} · {one.summary}" if one.usage else one.summary)
        for one in COMMANDS
    )


def keys_of(bindings: Iterable[ActiveBinding]) -> list[tuple[str, str]]:
    """Keys and what they do, one line an action, in the order of the key map."""
    found: dict[str, list[str]] = {}
    for _, binding, enabled, _ in sorted(bindings, key=_rank):
        ours = not binding.action.startswith(("app.", "screen."))
        if ours and enabled and binding.description:
            words = binding.tooltip or binding.description
            found.setdefault(words, []).append(_key_name(binding))
    return [(_joined([*dict.fromkeys(keys)]), words) for words, keys in found.items()]


def _joined(keys: list[str]) -> str:
    """`1-9` for all digits."""
    digits = len(keys) > 1 and all(key.isdigit() for key in keys)
    return f"{keys[0]}-{keys[-1]}" if digits else " ".join(keys)


def _rank(binding: ActiveBinding) -> int:
    """What is in sight comes first, then the screen, last how the widget in it is moved about."""
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
