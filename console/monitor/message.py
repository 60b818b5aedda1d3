"""One message as it may be shown: cut to size, and without what the connection's masks hide."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime

from console.monitor.filters import Filters
from console.monitor.walked import Ask
from console.monitor.walks import Key, Walk

ERROR_LENGTH = 1_000
"""So many characters of an error's text stand in a list."""
WHOLE_ERROR_LENGTH = 100_000
"""Where one message is asked for."""
_MASK_MARGIN = 200
"""Read beyond the end of a text that is cut, so that what is to be masked is seen whole."""
MASKED = "***"

Masks = Sequence[re.Pattern[str]]


@dataclass(frozen=True)
class MessageRow:
    """What the statement `matching` returns."""

    position: int
    matches: bool
    key_time: str | None
    key_id: str
    id: str | None
    state: str | None
    pushed_at: datetime | None
    age_seconds: float | None
    due_at: datetime | None
    attempts: int | None
    claimed_at: datetime | None
    claimed_by: str | None
    done_at: datetime | None
    title: str | None
    slot: int | None
    number: int | None
    payload_bytes: int | None
    payload: str | bytes | None
    error: str | None

    def key(self, walk: Walk) -> Key:
        """Its place in the walk that it was met in."""
        return Key(walk.name, self.key_time or "", self.key_id, walk.dated)


@dataclass(frozen=True)
class Message:
    """One message as it was found. None: the design has it not, or nothing tells it."""

    key: str
    """Where it stands in the list; empty where the list has no order."""
    id: str | None
    state: str
    pushed_at: datetime | None
    age_seconds: float | None
    """Since it came into its state, by the database's clock."""
    due_at: datetime | None
    attempts: int | None
    claimed_at: datetime | None
    claimed_by: str | None
    done_at: datetime | None
    error: str | None
    error_cut: bool
    title: str | None
    slot: int | None
    number: int | None
    payload_bytes: int | None
    """The size of the whole payload, as the database stores its characters."""
    payload: str | bytes | None = None
    """None unless it was asked for."""
    payload_cut: bool = False


_AS_IT_IS = {field.name for field in fields(MessageRow)} & {field.name for field in fields(Message)}
_AS_IT_IS -= {"state", "error", "title", "payload"}


@dataclass(frozen=True)
class Wanted:
    """Which messages, and how much of each."""

    filters: Filters
    limit: int
    reverse: bool = False
    payload_bytes: int | None = None
    """So much of each payload; None: nothing."""
    masks: tuple[re.Pattern[str], ...] = ()
    whole_error: bool = False
    oldest_first: bool = False
    """Each walk from the end that came first, whichever is shown first."""
    moment: datetime | None = None
    """Ages are measured from then, and what came into its state later is left out. None: now."""

    def ask(self, walk: Walk, *, after: Key | None = None, exactly: bool = False) -> Ask:
        """The same of one walk, without bounds."""
        margin = 1 + (_MASK_MARGIN if self.masks else 0)
        return Ask(
            walk,
            after=after,
            exactly=exactly,
            reverse=walk.newest_first if self.oldest_first else self.reverse,
            filters=self.filters,
            moment=self.moment,
            payload_length=None if self.payload_bytes is None else self.payload_bytes + margin,
            error_length=self._error_length + margin,
        )

    def message(self, row: MessageRow, walk: Walk) -> Message:
        """The row as it may be shown."""
        payload, payload_cut = self._payload(row.payload)
        error = None if row.error is None else masked(row.error, self.masks)
        return Message(
            key=row.key(walk).text if row.key_id else "",
            state=row.state or "",
            title=None if row.title is None else masked(row.title, self.masks),
            error=None if error is None else error[: self._error_length],
            error_cut=error is not None and len(error) > self._error_length,
            payload=payload,
            payload_cut=payload_cut,
            **{name: getattr(row, name) for name in _AS_IT_IS},
        )

    @property
    def _error_length(self) -> int:
        whole = self.whole_error or len(self.filters.ids) == 1
        return WHOLE_ERROR_LENGTH if whole else ERROR_LENGTH

    def _payload(self, payload: str | bytes | None) -> tuple[str | bytes | None, bool]:
        """At most so many bytes of it (of UTF-8, whole characters), and whether that is less."""
        if payload is None or self.payload_bytes is None:
            return None, False
        if isinstance(payload, bytes):
            # Latin-1 has a character for each byte, so that the masks see what is text in it.
            raw = masked(payload.decode("latin-1"), self.masks).encode("latin-1")
            return raw[: self.payload_bytes], len(raw) > self.payload_bytes
        data = masked(payload, self.masks).encode()
        return data[: self.payload_bytes].decode(errors="ignore"), len(data) > self.payload_bytes


def masked(text: str, masks: Masks) -> str:
    """The text without what the masks hide."""
    for mask in masks:
        text = mask.sub(MASKED, text)
    return text
