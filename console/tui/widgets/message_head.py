"""What is known of one message: its states and times, how often it was tried, who has it."""

from rich.text import Text

from console.formats import UNKNOWN, count, duration
from console.monitor import message_words as words
from console.monitor.message import Message
from console.monitor.owners import Evidence
from console.tui.board import Key
from console.tui.desk import Desk
from console.tui.text import plain
from console.tui.widgets.telling import say
from console.tui.widgets.tones import tone
from console.tui.widgets.words import Words

_WIDE = 100
"""From so many columns on the times stand on one line."""
_OWNERS = {Evidence.GONE: "critical", Evidence.ALIVE: "good"}


class MessageHead(Words):
    """A few lines, whatever is in them."""

    def __init__(self) -> None:
        super().__init__(id="message-head")

    def draw(  # what there is to say, each by its name
        self,
        desk: Desk,
        key: Key,
        message_key: str,
        message: Message | None,
        owner: Evidence | None,
        state: str,
    ) -> None:
        """`message`: as it was seen last; `state`: gone, masks off, or nothing."""
        title = Text(no_wrap=True)
        title.append(plain(f"{key[1]}.{key[2]}"), tone(self, "quiet"))
        name = message_key.rsplit(",", maxsplit=1)[-1] if message is None else message.id or UNKNOWN
        title.append(f"  message {plain(name)}", tone(self, "strong"))
        gone = state == "gone"
        if message is None:
            words_ = "  gone: popped, purged or archived" if gone else "  Looking ..."
            title.append(words_, tone(self, "critical" if gone else "quiet"))
            say(self, [title])
            return
        if gone:
            title.append("  GONE by now; as it was seen last", tone(self, "critical"))
        elif state:
            title.append(f"  {state}", tone(self, "warning"))
        lines = [title, self._state(message), self._times(desk, message)]
        if message.claimed_by is not None:
            lines.append(self._owner(message, owner))
        if message.title:
            lines.append(Text(f"title {plain(message.title)}", no_wrap=True))
        say(self, lines)

    def _state(self, message: Message) -> Text:
        mood = tone(self, "warning" if message.state == "error" else "strong")
        line = Text(message.state, mood, no_wrap=True)
        if message.age_seconds is not None:
            line.append(f" for {duration(max(message.age_seconds, 0.0))}")
        facts = [] if message.attempts is None else [f"attempts {message.attempts}"]
        if message.number is not None:
            facts.append(f"number {message.number:,}")
        if message.slot is not None:
            facts.append(f"slot {message.slot:,}")
        size = message.payload_bytes
        facts.append(f"payload {UNKNOWN if size is None else count(size)} bytes")
        return Text.assemble(line, "   " + "   ".join(facts), no_wrap=True)

    def _times(self, desk: Desk, message: Message) -> Text:
        times = (
            ("pushed", message.pushed_at),
            ("due", message.due_at),
            ("claimed", message.claimed_at),
            ("ended", message.done_at),
        )
        known = [f"{name} {desk.moment(at)}" for name, at in times if at is not None]
        no_wrap = self.app.size.width >= _WIDE
        return Text("   ".join(known), tone(self, "quiet"), no_wrap=no_wrap)

    def _owner(self, message: Message, owner: Evidence | None) -> Text:
        line = Text(no_wrap=True)
        if owner is not None:
            line.append(f"owner {owner.value}  ", tone(self, _OWNERS.get(owner, "quiet")))
        return line.append(f"claimed by {plain(words.owner(message.claimed_by))}")
