"""Messages as they may be shown: cut to size, and masked as the connection says."""

import base64
import re
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Protocol, TypeVar

from console.monitor.filters import Filters
from console.monitor.rates import known_age
from console.monitor.scans import Grouping, Scan, ScanKey, ScanRequest
from console.monitor.wording import TEXT_LENGTH

Page = TypeVar("Page")
Position = TypeVar("Position")


class ScanRow(Protocol):
    """A row with its position in a scan."""

    @property
    def key_time(self) -> str | None: ...
    @property
    def key_id(self) -> str: ...
    @property
    def position(self) -> int: ...


@dataclass
class ReadBound:
    """The most rows that are read, and the longest time. A first page is always read."""

    most: float
    seconds: float
    rows: float = 0
    met: bool = False
    """Whether reading stopped here before the last row."""
    _began: float = field(default_factory=time.monotonic)

    def may_continue(self, read: float) -> bool:
        """Whether to read another page after one of `read` rows."""
        self.rows += read
        return self.rows < self.most and self.took <= self.seconds

    @property
    def took(self) -> float:
        return time.monotonic() - self._began


def pages(
    first: Position,
    read: Callable[[Position], Page],
    after: Callable[[Page], tuple[int, Position | None]],
    bound: ReadBound,
) -> Iterator[Page]:
    """Page by page from `first` on, up to the bound.

    `after`: how many rows a page has read, and where the next page begins; None: there is none.
    """
    position = first
    while True:
        page = read(position)
        yield page
        rows, following = after(page)
        more = bound.may_continue(rows)
        if following is None:
            return
        if not more:
            bound.met = True
            return
        position = following


def key_of(scan: Scan, row: ScanRow) -> ScanKey:
    return ScanKey(scan.name, row.key_time or "", row.key_id, scan.dated)


def last_key(scan: Scan, rows: Sequence[ScanRow]) -> ScanKey | None:
    """The key after which the next page begins."""
    last = max(rows, key=lambda row: row.position, default=None)
    return None if last is None else key_of(scan, last)


ERROR_LENGTH = 1_000
"""Characters of an error text in a list."""
FULL_ERROR_LENGTH = 100_000
"""If one message is read."""
MASK_MARGIN = 200
"""Read beyond the end of a text that is cut, so that a mask can match across it."""
MASKED = "***"
MASK_SECONDS = 0.25
"""For all masks on one text."""
_SLOW_SECONDS = 0.01
"""The same once a mask has taken longer: lists have many texts."""
_slow: set[str] = set()

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
    """Of its whole text; None: not read."""


@dataclass(frozen=True)
class PastAttempt:
    """How an attempt at a message ended. `error` None: its claim was released."""

    at: datetime | None
    claimed_by: str | None
    attempts: int | None
    error: str | None

    @classmethod
    def of(
        cls, at: str | None, claimed_by: str | None, attempts: str | None, error: str | None
    ) -> "PastAttempt":
        """Of the texts in its row, which anybody may have written; None: not known."""
        moment = number = None
        with suppress(ValueError, OverflowError):
            moment = datetime.fromisoformat(at or "")
            moment = moment.replace(tzinfo=moment.tzinfo or UTC).astimezone(UTC)
        with suppress(ValueError):
            number = int(attempts or "")
        return cls(moment, claimed_by, number, error)

    def as_json(self) -> dict[str, object]:
        return vars(self) | {"at": None if self.at is None else self.at.isoformat()}


@dataclass(frozen=True)
class Message:
    """One message. None: not of this design, or not known."""

    key: str
    """Its position in the list; empty if the list has no order."""
    id: str | None
    state: str
    pushed_at: datetime | None = None
    age_seconds: float | None = None
    """Since it entered its state, by the database's clock."""
    due_at: datetime | None = None
    attempts: int | None = None
    claimed_at: datetime | None = None
    claimed_by: str | None = None
    done_at: datetime | None = None
    error: str | None = None
    error_cut: bool = False
    title: str | None = None
    slot: int | None = None
    number: int | None = None
    payload_bytes: int | None = None
    """The size of the whole payload, as the database stores its characters."""
    payload: str | bytes | None = None
    payload_cut: bool = False
    error_hash: str | None = None
    """Of the whole error text, if messages of one error group were requested."""
    history: tuple[PastAttempt, ...] | None = None
    """The newest first, if one message was read; None: its queue keeps none."""

    def as_json(self, *, with_payload: bool) -> dict[str, object]:
        """With a payload also its `encoding`; `history` only if there is one."""
        values = {name: value for name, value in vars(self).items() if name != "error_hash"}
        payload, cut = values.pop("payload"), values.pop("payload_cut")
        if (history := values.pop("history")) is not None:
            values["history"] = [one.as_json() for one in history]
        for name, value in values.items():
            if isinstance(value, datetime):
                values[name] = value.astimezone(UTC).isoformat()
        if not with_payload:
            return values
        encoding = None if payload is None else "text"
        if isinstance(payload, bytes):
            payload, encoding = base64.b64encode(payload).decode(), "base64"
        return values | {"payload": payload, "encoding": encoding, "payload_cut": cut}


_COPIED = {field.name for field in fields(MessageRow)} & {field.name for field in fields(Message)}
_COPIED -= {"state", "error", "title", "payload", "age_seconds"}


@dataclass(frozen=True)
class MessageQuery:
    filters: Filters
    limit: int
    reverse: bool = False
    payload_bytes: int | None = None
    """Bytes of each payload that are read; None: nothing."""
    masks: tuple[re.Pattern[str], ...] = ()
    full_error: bool = False
    oldest_first: bool = False
    """Each scan from its oldest end, whichever is shown first."""
    moment: datetime | None = None
    """Ages are measured from then, without messages that changed state later. None: now."""
    grouping: Grouping = Grouping.NO
    group_limit: object = None
    groups: Sequence[str] = ()
    """The only ones; empty: all."""
    until: ScanKey | None = None
    """The last one."""

    def scan_request(
        self, scan: Scan, *, after: ScanKey | None = None, exactly: bool = False
    ) -> ScanRequest:
        """The query for one scan, without bounds."""
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
            grouping=self.grouping,
            group_limit=self.group_limit,
            groups=self.groups,
            until=self.until,
        )

    def message(self, row: MessageRow, scan: Scan) -> Message:
        payload, payload_cut = self._payload(row.payload)
        error = None if row.error is None else masked(row.error, self.masks)
        return Message(
            key=key_of(scan, row).text if row.key_id else "",
            state=row.state or "",
            age_seconds=known_age(row.age_seconds),
            title=None if row.title is None else masked(row.title, self.masks),
            error=None if error is None else error[: self._error_length],
            error_cut=error is not None and len(error) > self._error_length,
            payload=payload,
            payload_cut=payload_cut,
            **{name: getattr(row, name) for name in _COPIED},
        )

    @property
    def _error_length(self) -> int:
        full = self.full_error or len(self.filters.ids) == 1
        return FULL_ERROR_LENGTH if full else ERROR_LENGTH

    def _payload(self, payload: str | bytes | None) -> tuple[str | bytes | None, bool]:
        """The first bytes of it (whole characters of UTF-8), and whether it was cut."""
        if payload is None or self.payload_bytes is None:
            return None, False
        if isinstance(payload, bytes):
            raw = masked_bytes(payload, self.masks)
            return raw[: self.payload_bytes], len(raw) > self.payload_bytes
        data = masked(payload, self.masks).encode()
        return data[: self.payload_bytes].decode(errors="ignore"), len(data) > self.payload_bytes


def masked(text: str, masks: Masks) -> str:
    """All of it is masked if the masks take too long on it: some patterns take years."""
    if not masks:
        return text
    import regex  # type: ignore[import-untyped]  # noqa: PLC0415  # verbs shall start at once

    for mask in masks:
        left = (_SLOW_SECONDS if mask.pattern in _slow else MASK_SECONDS) / len(masks)
        try:
            text = regex.sub(mask.pattern, MASKED, text, timeout=left, concurrent=True)
        except TimeoutError:
            _slow.add(mask.pattern)
            return MASKED
    return text


def masked_bytes(payload: bytes, masks: Masks) -> bytes:
    """Text in UTF-8 or UTF-16, wherever it begins."""
    # Latin-1 has a character for each byte.
    for encoding in ("utf-8", "latin-1"):
        with suppress(UnicodeDecodeError):
            payload = masked(payload.decode(encoding), masks).encode(encoding)
    if b"\0" not in payload:
        return payload
    for encoding in ("utf-16-le", "utf-16-be"):
        for start in (0, 1):
            end = len(payload) - (len(payload) - start) % 2
            # A unit that is no character is kept by itself.
            units = struct.unpack(
                f"{'<' if encoding.endswith('le') else '>'}{(end - start) // 2}H",
                payload[start:end],
            )
            before = "".join(map(chr, units))
            if (after := masked(before, masks)) != before:
                middle = after.encode(encoding, "surrogatepass")
                payload = payload[:start] + middle + payload[end:]
    return payload
