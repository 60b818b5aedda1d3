"""Filters of archived messages: parsed, and applied to batches of a file's rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce

import pyarrow as pa

from console.errors import UsageError
from console.features.lake.archive.files import TIME, pc
from console.filters import ARCHIVED, Term


@dataclass(frozen=True)
class ArchiveFilter(Term):
    """A term that batches of an archive's rows are searched by."""

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
        return self.field == "id" and self.operator == "="

    def mask(self, rows: pa.RecordBatch) -> pa.Array:
        """Whether each row matches; never null."""
        if self.field in {"since", "until"}:
            compare = pc.greater_equal if self.field == "since" else pc.less
            matches = compare(rows.column("archived_at"), pa.scalar(self.time, TIME))
            # A time that no file can hold is one before the year 1.
            matches = pc.fill_null(matches, fill_value=self.field == "until")
        elif self.field == "payload":
            texts = pc.match_substring(rows.column("payload"), self.value)
            others = (pc.match_substring(rows.column("payload_bytes"), one) for one in self.encoded)
            matches = reduce(pc.or_, map(_known, (texts, *others)))
        elif self.operator == "=":
            matches = pc.equal(rows.column(self.field), self.value)
        else:
            matches = pc.match_substring(rows.column(self.field), self.value)
        return _known(matches)


def _known(matches: pa.Array) -> pa.Array:
    return pc.fill_null(matches, fill_value=False)


def matches(rows: pa.RecordBatch, filters: Sequence[ArchiveFilter]) -> pa.Array:
    """Whether each row matches any of the ids and all other filters. At least one is given."""
    ids = [archive_filter.mask(rows) for archive_filter in filters if archive_filter.is_id]
    others = [archive_filter.mask(rows) for archive_filter in filters if not archive_filter.is_id]
    any_id = [reduce(pc.or_, ids)] if ids else []
    return reduce(pc.and_, (*any_id, *others))


def parse_filters(words: Sequence[str]) -> tuple[ArchiveFilter, ...]:
    """UsageError for a word that is not a filter."""
    return tuple(_parse(word) for word in words)


def _parse(word: str) -> ArchiveFilter:
    term = ARCHIVED.term(word)
    archive_filter = ArchiveFilter(term.field, term.operator, term.value)
    if archive_filter.field in {"since", "until"}:
        _ = archive_filter.time  # raises what is wrong with it
    return archive_filter


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
