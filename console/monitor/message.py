"""One message as it may be shown: cut to size, and without what the connection's masks hide. Rows
are read a page at a time: each statement reads so many and no more, up to a bound."""

import base64
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Protocol, TypeVar

from console.monitor.filters import Filters
from console.monitor.scans import Scan, ScanKey, ScanRequest
from console.monitor.wording import TEXT_LENGTH

Page = TypeVar("Page")
Place = TypeVar("Place")


class ScanRow(Protocol):
    """A row that tells its place in a scan."""

    @property
    def key_time(self) -> str | None: ...
    @property
    def key_id(self) -> str: ...
    @property
    def position(self) -> int: ...


@dataclass
class ReadBound:
    """How far reading goes: so many rows, and so long. A first page is always read."""

    most: float
    seconds: float
    rows: float = 0
    """Read so far."""
    met: bool = False
    """Whether reading has ended here, before the rows did."""
    _began: float = field(default_factory=time.monotonic)

    def goes_on(self, read: float) -> bool:
        """Whether to read another page, after one of so many rows."""
        self.rows += read
        return self.rows < self.most and self.took <= self.seconds

    @property
    def took(self) -> float:
        return time.monotonic() - self._began


def pages(
    first: Place,
    read: Callable[[Place], Page],
    after: Callable[[Page], tuple[int, Place | None]],
    bound: ReadBound,
) -> Iterator[Page]:
    """Page by page from `first` on, as far as the bound.

    `after`: how many rows a page has read, and where the next one begins; None: there is none.
    """
    place = first
    while True:
        page = read(place)
        yield page
        rows, following = after(page)
        more = bound.goes_on(rows)
        if following is None:
            return
        if not more:
            bound.met = True
            return
        place = following


def key_of(scan: Scan, row: ScanRow) -> ScanKey:
    return ScanKey(scan.name, row.key_time or "", row.key_id, scan.dated)


def last_key(scan: Scan, rows: Sequence[ScanRow]) -> ScanKey | None:
    """Where the page after these begins."""
    last = max(rows, key=lambda row: row.position, default=None)
    return None if last is None else key_of(scan, last)


ERROR_LENGTH = 1_000
"""So many characters of an error's text stand in a list."""
WHOLE_ERROR_LENGTH = 100_000
"""Where one message is asked for."""
MASK_MARGIN = 200
"""Read beyond the end of a text that is cut, so that what is to be masked is seen whole."""
MASKED = "***"

Masks = Sequence[re.Pattern[str]]


@dataclass(frozen=True)
class MessageRow:
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
    error_hash: str | None
    """Of its whole text; None: it was not wanted."""


@dataclass(frozen=True)
class PastAttempt:
    """How an attempt at a message ended. `error` None: its claim was released."""

    at: datetime
    claimed_by: str | None
    attempts: int | None
    error: str | None

    def as_json(self) -> dict[str, object]:
        """Keys as here; the time in ISO 8601, UTC."""
        return vars(self) | {"at": self.at.astimezone(UTC).isoformat()}


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
    error_hash: str | None = None
    """Of the error's whole text, where messages of one kind are wanted."""
    history: tuple[PastAttempt, ...] | None = None
    """The newest first, where one message is asked for; None: its queue keeps none."""

    def as_json(self, *, with_payload: bool) -> dict[str, object]:
        """Keys as here, and with a payload its `encoding`; times in ISO 8601, UTC. `history` where
        there is one."""
        told = {name: value for name, value in vars(self).items() if name != "error_hash"}
        payload, cut = told.pop("payload"), told.pop("payload_cut")
        if (history := told.pop("history")) is not None:
            told["history"] = [one.as_json() for one in history]
        for name, value in told.items():
            if isinstance(value, datetime):
                told[name] = value.astimezone(UTC).isoformat()
        if not with_payload:
            return told
        encoding = None if payload is None else "text"
        if isinstance(payload, bytes):
            payload, encoding = base64.b64encode(payload).decode(), "base64"
        return told | {"payload": payload, "encoding": encoding, "payload_cut": cut}


_AS_IT_IS = {field.name for field in fields(MessageRow)} & {field.name for field in fields(Message)}
_AS_IT_IS -= {"state", "error", "title", "payload"}


@dataclass(frozen=True)
class MessageQuery:
    filters: Filters
    limit: int
    reverse: bool = False
    payload_bytes: int | None = None
    """So much of each payload; None: nothing."""
    masks: tuple[re.Pattern[str], ...] = ()
    whole_error: bool = False
    oldest_first: bool = False
    """Each scan from the end that came first, whichever is shown first."""
    moment: datetime | None = None
    """Ages are measured from then, and what came into its state later is left out. None: now."""

    def scan_request(
        self, scan: Scan, *, after: ScanKey | None = None, exactly: bool = False
    ) -> ScanRequest:
        """The same of one scan, without bounds."""
        margin = 1 + (MASK_MARGIN if self.masks else 0)
        least = 0 if self.filters.error_group is None else TEXT_LENGTH
        return ScanRequest(
            scan,
            after=after,
            exactly=exactly,
            reverse=scan.newest_first if self.oldest_first else self.reverse,
            filters=self.filters,
            moment=self.moment,
            payload_length=None if self.payload_bytes is None else self.payload_bytes + margin,
            error_length=max(least, self._error_length + margin),
        )

    def message(self, row: MessageRow, scan: Scan) -> Message:
        payload, payload_cut = self._payload(row.payload)
        error = None if row.error is None else masked(row.error, self.masks)
        return Message(
            key=key_of(scan, row).text if row.key_id else "",
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
    for mask in masks:
        text = mask.sub(MASKED, text)
    return text
