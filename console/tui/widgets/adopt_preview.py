"""What a table is as a queue of a design: its first messages, its figures, its verbs."""

from collections.abc import Sequence

from rich.text import Text

from console import formats
from console.actions import adoptable
from console.actions.adoptable import Preview
from console.monitor.message import Message
from console.tui.text import figure, plain, said, shorten
from console.tui.widgets.paragraph import Paragraph
from console.tui.widgets.tones import tone

_FIGURES = ("ready", "age_seconds", "claimed", "stuck", "errors", "done", "scheduled")


class AdoptPreview(Paragraph):
    """Says what is still wanted, before anything is asked of the table."""

    def draw(self, missing: Sequence[str], preview: Preview | None) -> None:
        """`missing`: the roles that the design cannot do without; None: it is being asked."""
        text = Text()
        if missing:
            text.append(f"Still wanted: {', '.join(missing)}.\n", tone(self, "warning"))
        elif preview is None:
            text.append("Looking at its rows ...\n", tone(self, "quiet"))
        else:
            self._append(text, preview)
        self.say(text)

    def _append(self, text: Text, preview: Preview) -> None:
        for error in preview.errors:
            text.append(f"✖ {' '.join(said(error).splitlines())}\n", tone(self, "critical"))
        text.append("As a queue, its first messages are:\n", tone(self, "strong"))
        width = max(20, (self.size.width or self.app.size.width) - 4)
        for message in preview.messages:
            text.append(f"  {shorten(_told(message), width)}\n")
        if not preview.messages and not preview.errors:
            text.append("  none; the table is empty, or none has a state\n", tone(self, "quiet"))
        figures = preview.figures
        if figures is not None:
            text.append("Figures: ", tone(self, "strong"))
            shown = [(n.removesuffix("_seconds"), figure(figures, n)) for n in _FIGURES]
            kept = [f"{name} {value}" for name, value in shown if value != formats.NOT_APPLICABLE]
            text.append("  ".join(kept) + "\n")
            if figures.problem:
                text.append(f"✖ {plain(figures.problem)}\n", tone(self, "critical"))
        able, unable = adoptable.verbs(preview.queue)
        text.append("Verbs: ", tone(self, "strong"))
        text.append("  ".join(able) + "\n")
        for verb, why in unable.items():
            text.append(f"  no {verb}: {why}\n", tone(self, "quiet"))


def _told(message: Message) -> str:
    """One row of the preview; safe to show."""
    payload = message.payload
    body = payload.hex(" ") if isinstance(payload, bytes) else payload or ""
    age = formats.UNKNOWN if message.age_seconds is None else formats.duration(message.age_seconds)
    parts = [message.id or formats.UNKNOWN, message.state, age]
    if message.error:
        parts.append(f"error: {message.error}")
    return plain("  ".join((*parts, body)))
