"""A plan, and under it what has to be typed for it."""

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.widgets import Input

from console.actions.work import Planned
from console.monitor.message import Masks
from console.tui.text import plain
from console.tui.widgets.lines import Lines
from console.tui.widgets.plan_view import PlanView


class PlanPane(Vertical):
    """The arrows scroll the plan while the confirmation has the keys."""

    def compose(self) -> ComposeResult:
        """The plan may be long: it scrolls, the question stays."""
        with VerticalScroll(id="plan-scroll", can_focus=False):
            yield PlanView(id="plan-view")
        yield Lines(id="ask")
        yield Input(id="confirm", placeholder="type it here", compact=True)

    def draw(self, planned: Planned, masks: Masks) -> None:
        """Show a plan, from its beginning."""
        self.query_one(PlanView).draw(planned, masks)
        self.query_one("#plan-scroll").scroll_home(animate=False)
        confirm = self.query_one("#confirm", Input)
        confirm.value = ""
        confirm.display = planned.needed and not planned.obstacles
        self.ask(planned)

    def ask(self, planned: Planned, wrong: str = "") -> None:
        """What has to be typed; `wrong`: why what was typed will not do."""
        word = f"the queue's name, {plain(planned.queue.name)}," if planned.by_name else "y"
        words = f"To do it, type {word} and Enter. Escape: back; nothing is changed."
        if planned.obstacles:
            words = "It cannot be done as it stands. Escape: back; nothing is changed."
        elif not planned.needed:
            words = "There is nothing to do. Escape: back."
        self.query_one("#ask", Lines).say(Text(f"✖ {plain(wrong)}\n{words}" if wrong else words))

    def enter(self) -> None:
        """Let the keys go to the confirmation, if one is wanted."""
        confirm = self.query_one("#confirm", Input)
        # At once: focus() would let the next keys go the old way.
        self.screen.set_focus(confirm if confirm.display else None)
