"""Filters of archived messages: parsed, and applied to batches of a file's rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce

import pyarrow as pa

from console.errors import UsageError
from console.pipeline.archive.files import TIME, pc

FORMS = (
    "id=I state=S error=E error~T reason=R reason~T title~T payload~T more~T since=TIME until=TIME"
)
TEXTS = ("id", "state", "error", "reason", "title")


@dataclass(frozen=True)
class ArchiveFilter:
    """`name=value`, or `name~text`: contains the text."""

    name: str
    operator: str
    value: str

    @property
    def word(self) -> str:
        """As it is given."""
        return f"{self.name}{self.operator}{self.value}"

    @property
    def time(self) -> datetime:
        """Of `since` and `until`, which are about when a message was archived."""
        return _time(self.value)

    @property
    def encoded(self) -> list[bytes]:
        """What a payload of bytes has where it is this text."""
        return [self.value.encode(name) for name in ("utf-8", "utf-16-le", "utf-16-be")]

    @property
    def is_id(self) -> bool:
        """Of several such filters any one is enough; of others, all must match."""
        return self.name == "id" and self.operator == "="

    def mask(self, rows: pa.RecordBatch) -> pa.Array:
        """Whether each row matches; never null."""
        if self.name in {"since", "until"}:
            compare = pc.greater_equal if self.name == "since" else pc.less
            matches = compare(rows.column("archived_at"), pa.scalar(self.time, TIME))
            # A time that no file can hold is one before the year 1.
            matches = pc.fill_null(matches, fill_value=self.name == "until")
        elif self.name == "payload":
            texts = pc.match_substring(rows.column("payload"), self.value)
            others = (pc.match_substring(rows.column("payload_bytes"), one) for one in self.encoded)
            matches = reduce(pc.or_, map(_known, (texts, *others)))
        elif self.operator == "=":
            matches = pc.equal(rows.column(self.name), self.value)
        else:
            matches = pc.match_substring(rows.column(self.name), self.value)
        return _known(matches)


def _known(matches: pa.Array) -> pa.Array:
    return pc.fill_null(matches, fill_value=False)


def matches(rows: pa.RecordBatch, filters: Sequence[ArchiveFilter]) -> pa.Array:
    """Whether each row matches any of the ids and all other filters. At least one is given."""
    ids = [one.mask(rows) for one in filters if one.is_id]
    others = [one.mask(rows) for one in filters if not one.is_id]
    any_id = [reduce(pc.or_, ids)] if ids else []
    return reduce(pc.and_, (*any_id, *others))


def parse_filters(words: Sequence[str]) -> tuple[ArchiveFilter, ...]:
    """UsageError for a word that is not a filter."""
    return tuple(_parse(word) for word in words)


def _parse(word: str) -> ArchiveFilter:
    at = min((index for sign in "=~" if (index := word.find(sign)) > 0), default=-1)
    name, operator, value = word[:at], word[at : at + 1], word[at + 1 :]
    known = (
        name in TEXTS
        or (name in {"since", "until"} and operator == "=")
        or (name in {"payload", "more"} and operator == "~")
    )
    if at < 0 or not known or not value:
        raise UsageError(
            f"{word!r} is not a filter of archived messages.", next_step=f"Filters: {FORMS}"
        )
    found = ArchiveFilter(name, operator, value)
    if name in {"since", "until"}:
        _ = found.time  # raises what is wrong with it
    return found


def _time(text: str) -> datetime:
    """UTC unless it says otherwise. UsageError."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(
            f"{text!r} is not a time.",
            next_step="Examples: 2026-03-28, 2026-03-28T03:00, ...+01:00",
        ) from error
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
