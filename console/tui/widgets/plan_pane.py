"""A plan, its SQL, its progress, and the confirmation that it requires."""

from collections.abc import Sequence
from typing import ClassVar

from pygments.lexers import get_lexer_by_name  # type: ignore[import-untyped]
from pygments.token import Comment, Keyword, Literal, Token  # type: ignore[import-untyped]
from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import ScrollableContainer, Vertical, VerticalScroll
from textual.widgets import Input, Static

from console import formats
from console.engines import Product
from console.monitor.message import Masks, masked
from console.plan import Confirmation, SampleMessage, tone_of
from console.tui.jobs import ActionRun
from console.tui.text import TextView, first_line, plain, shorten, style_of

_TOKEN_STYLES = (
    (Comment, "quiet"),
    (Keyword, "strong"),
    (Literal, "trend"),
    (Token.Name.Builtin, "strong"),
)


class SqlView(ScrollableContainer, can_focus=True):
    """Data, never markup; control characters are made visible."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "scroll_up", "up", show=False),
        Binding("down,j", "scroll_down", "down", show=False),
        Binding("left,h", "scroll_left", "to the left", show=False),
        Binding("right,l", "scroll_right", "to the right", show=False),
        Binding("home,g", "scroll_home", "first line", show=False),
        Binding("end,G", "scroll_end", "last line", show=False),
        Binding("y", "copy", "copy", show=False, tooltip="copy the SQL"),
    ]

    text = ""
    _product: Product

    def compose(self) -> ComposeResult:
        yield TextView(id="sql-text")

    def show(self, text: str, product: Product) -> None:
        self.text, self._product = text, product
        self._draw()
        self.scroll_home(animate=False)

    def _draw(self) -> None:
        view = self.query_one(TextView)
        drawn = Text(no_wrap=True)
        lexer = get_lexer_by_name(self._product.sql_lexer, stripnl=False)
        safe = "\n".join(map(plain, self.text.expandtabs(4).split("\n")))
        for kind, value in lexer.get_tokens(safe):
            name = next((name for of, name in _TOKEN_STYLES if kind in of), "")
            drawn.append(value, style_of(view, name))
        view.set_text(drawn)

    def action_copy(self) -> None:
        self.app.copy_to_clipboard(self.text)
        self.notify("The SQL is copied.")


class PlanView(Static):
    """A plan's text, the sample and the SQL: data, never markup, without payloads."""

    plain_text = ""
    """What is shown above the sample, without styles."""

    def draw(
        self, lines: Sequence[str], sample: Sequence[SampleMessage], sql: str, masks: Masks
    ) -> None:
        text = Text()
        for at, line in enumerate(lines):
            style = tone_of(line).value or ("" if at else "strong")
            text.append(f"{plain(line)}\n", style_of(self, style))
        self.plain_text = text.plain
        parts: list[RenderableType] = [text]
        if sample:
            parts += [self._sample(sample, masks), Text()]
        if sql:
            parts += [Text("The SQL of each batch:", style_of(self, "quiet")), Text(_shown(sql))]
        self.update(Group(*parts))

    def _sample(self, sample: Sequence[SampleMessage], masks: Masks) -> Table:
        table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False)
        for title in ("id", "state", "age", "attempts", "error, owner"):
            table.add_column(Text(title, style_of(self, "quiet")), no_wrap=True)
        # The last column takes what the others leave: rich would shrink all of them.
        most = self.app.size.width - 6 - _OTHERS
        names = [
            shorten(_name(sample_message), max(8, most - 2 - _LEAST_ERROR))
            for sample_message in sample
        ]
        room = max(_LEAST_ERROR, most - 2 - max(map(cell_len, names)))
        for message, name in zip(sample, names, strict=True):
            text = message.error or message.claimed_by or ""
            table.add_row(
                Text(name),
                Text(message.state),
                Text(formats.UNKNOWN if message.age_seconds is None else _age(message.age_seconds)),
                Text(
                    formats.NOT_APPLICABLE if message.attempts is None else f"{message.attempts:,}"
                ),
                Text(shorten(first_line(masked(text, masks)), room)),
            )
        return table


_OTHERS = 11 + 12 + 10
"""Cells of the columns state, age and attempts."""
_LEAST_ERROR = 14


def _name(message: SampleMessage) -> str:
    return plain(message.id or message.key or formats.UNKNOWN)


def _age(seconds: float) -> str:
    return formats.duration(max(0.0, seconds))


def _shown(sql: str) -> str:
    """Line by line, with tabs expanded and control characters made visible."""
    return "\n".join(plain(line.expandtabs(4)) for line in sql.strip().splitlines())


_FULL, _LEFT = "━", "─"
_WIDEST = 60


class ProgressView(TextView):
    """A progress bar if the total is known, and the ledger so far."""

    def draw(self, running: ActionRun, now: float) -> None:
        progress = running.progress
        done = 0 if progress is None else progress.done
        total = running.plan.count if progress is None else progress.total
        text = Text()
        text.append(f"{running.name}{running.state}\n\n", style_of(self, "strong"))
        if total:
            text.append_text(self._bar(min(1.0, done / total)))
        counts = f"{done:,} of {total:,}" if total else f"{done:,}"
        text.append(f"{counts}{self._pace(running, done, total, now)}\n")
        if progress is not None and progress.ledger is not None:
            ledger = progress.ledger
            text.append(
                f"{ledger.out:,} done, {ledger.skipped_count:,} skipped, "
                f"{ledger.failed_count:,} failed\n"
            )
            for why, count in (*ledger.skipped.items(), *ledger.failed.items()):
                text.append(f"  {count:,}: {plain(why)}\n", style_of(self, "quiet"))
        if progress is not None and progress.text:
            text.append(f"{plain(progress.text)}\n", style_of(self, "quiet"))
        self.set_text(text)

    def _bar(self, share: float) -> Text:
        width = max(10, min(_WIDEST, self.app.size.width - 6))
        full = int(share * width)
        bar = Text(_FULL * full, style_of(self, "good"))
        bar.append(_LEFT * (width - full), style_of(self, "quiet"))
        return bar.append(f" {share:.0%}\n")

    def _pace(self, running: ActionRun, done: int, total: int | None, now: float) -> str:
        """The rate so far, and how long the rest takes at that rate."""
        seconds = now - running.began_at
        if seconds < 1 or not done:
            return ""
        text = f", {formats.rate(done / seconds)} a second"
        if total and done < total and not running.control.paused:
            text += f", about {formats.duration((total - done) * seconds / done)} left"
        return text


class PlanPane(Vertical):
    """The arrow keys scroll the plan while the confirmation has the focus."""

    def compose(self) -> ComposeResult:
        """A long plan scrolls; the confirmation stays visible."""
        with VerticalScroll(id="plan-scroll", classes="plan-part", can_focus=False):
            yield PlanView(id="plan-view")
        yield SqlView(id="plan-script", classes="plan-part")
        yield TextView(id="plan-prompt")
        yield Input(id="confirm", placeholder="type it here", compact=True)

    def draw(
        self,
        lines: Sequence[str],
        sample: Sequence[SampleMessage] = (),
        sql: str = "",
        masks: Masks = (),
        product: Product | None = None,
    ) -> None:
        """Show a plan from its top. `product`: show `sql` as a script in that product's dialect."""
        self.set_class(product is not None, "-script")
        self.query_one(PlanView).draw(lines, sample, sql if product is None else "", masks)
        if product is not None:
            self.query_one(SqlView).show(sql, product)
        self.query_one("#plan-scroll").scroll_home(animate=False)
        self.query_one("#confirm", Input).value = ""

    def show_prompt(self, confirmation: Confirmation, wrong: str = "") -> None:
        """Ask for the confirmation; `wrong`: why the text typed before does not confirm it."""
        self.query_one("#confirm").display = not confirmation.blocked_reason
        why = f"✖ {plain(wrong)}\n" if wrong else ""
        self.query_one("#plan-prompt", TextView).set_text(Text(f"{why}{confirmation.prompt}"))

    def focus_input(self) -> None:
        confirm = self.query_one("#confirm", Input)
        # At once: focus() is deferred, and the next keys would go to the old widget.
        script = self.query_one(SqlView) if self.has_class("-script") else None
        self.screen.set_focus(confirm if confirm.display else script)
