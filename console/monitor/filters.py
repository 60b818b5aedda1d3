"""Filters of messages, as `--filter` has them, parsed into one immutable value.

    state=error  older=10m  newer=1h  error~text  error-group=1-9f86d081884c7d65  id=17
    claimed_by=worker-1
    payload.customer.id=42  payload.items[0].sku=A1  payload."a.b"=x  limit=100  keep-newest=1000

A message must match all filters; of several `id=`, any. The callers bind the values and reject the
filters that do not apply to them.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from console.errors import UsageError
from console.filters import Language, is_unicode
from console.formats import parse_duration

Item = TypeVar("Item")
Number = TypeVar("Number", int, float)

FORMS = (
    "state=S",
    "older=10m",
    "newer=10m",
    "error~TEXT",
    "error-group=KEY",
    "id=ID",
    "claimed_by=WHO",
    "payload.PATH=VALUE",
    "limit=N",
    "keep-newest=N",
)
"""The syntax of each filter."""
LANGUAGE = Language(FORMS)
MOST_PAYLOAD_FILTERS = 4

_PAYLOAD = re.compile(
    r'payload(?P<path>(?:\.(?:"(?:[^"\\]|\\.)*"|[^."=\[\]\s]+)|\[[0-9]{1,9}\])+)=(?P<value>.*)',
    re.DOTALL,
)
_STEP = re.compile(r'\.(?:(?P<quoted>"(?:[^"\\]|\\.)*")|(?P<bare>[^."=\[\]]+))|\[(?P<index>\d+)\]')
_BARE_KEY = re.compile(r'[^."=\[\]\s]+')
_LONGEST_SECONDS = 50 * 366 * 86400.0
_NUMBER = re.compile(r"[0-9]{1,15}")


@dataclass(frozen=True)
class PayloadEquals:
    """The value at a path of a JSON payload, compared as text: 17 and "17" are both `17`."""

    path: tuple[str | int, ...]
    value: str

    @property
    def word(self) -> str:
        return f"payload{''.join(map(_step, self.path))}={self.value}"

    @property
    def json_path(self) -> str:
        """The path in SQL/JSON: `$."items"[0]."sku"`."""
        # A database without an encoding refuses escapes of Unicode.
        keys = (
            f"[{k}]" if isinstance(k, int) else f".{json.dumps(k, ensure_ascii=False)}"
            for k in self.path
        )
        return "$" + "".join(keys)


@dataclass(frozen=True)
class Filters:
    """What a message must match; None and empty: anything.

    `older` and `newer` are seconds since it entered its state: ready at pushed_at, or due_at if
    later; scheduled at pushed_at, claimed at claimed_at, done and error at done_at.
    """

    state: str | None = None
    older: float | None = None
    newer: float | None = None
    errors: tuple[str, ...] = ()
    """Texts that the error must contain, ignoring case."""
    error_group: str | None = None
    """The key of an error group."""
    ids: tuple[str, ...] = ()
    claimed_by: str | None = None
    """The whole text, the consumer's name, or its session (`pid=4711`)."""
    payload: tuple[PayloadEquals, ...] = ()
    limit: int | None = None
    """At most this many of the matching messages, in the verb's order."""
    keep_newest: int | None = None
    """How many of the newest matching messages are skipped."""

    @property
    def words(self) -> tuple[str, ...]:
        """The words that `parse` reads as this value."""
        named = (
            ("state", self.state),
            ("older", None if self.older is None else _duration(self.older)),
            ("newer", None if self.newer is None else _duration(self.newer)),
            ("error-group", self.error_group),
            ("claimed_by", self.claimed_by),
            ("limit", self.limit),
            ("keep-newest", self.keep_newest),
        )
        return (
            *(f"{name}={value}" for name, value in named if value is not None),
            *(f"id={one}" for one in self.ids),
            *(f"error~{text}" for text in self.errors),
            *(equals.word for equals in self.payload),
        )

    @property
    def id(self) -> str | None:
        """The id, if there is exactly one."""
        return self.ids[0] if len(self.ids) == 1 else None

    @property
    def each(self) -> tuple["Filters", ...]:
        """One filter per id: a single id is found by its key."""
        if len(self.ids) < 2:
            return (self,)
        return tuple(replace(self, ids=(one,)) for one in self.ids)

    @property
    def narrowing(self) -> bool:
        """Whether a message in the right state may fail to match."""
        return replace(self, state=None, limit=None, keep_newest=None) != NOTHING

    @property
    def reads_values(self) -> bool:
        """Whether it takes errors or payloads, which may be large, to see what matches."""
        return bool(self.errors or self.payload) or self.error_group is not None

    def without(self, verb: str, **refused: str) -> "Filters":
        """Itself; UsageError with the reason if a field of `refused` is set."""
        for field_name, why in refused.items():
            if getattr(self, field_name) != getattr(NOTHING, field_name):
                name = {"ids": "id"}.get(field_name, field_name.replace("_", "-"))
                raise UsageError(f"The filter {name}= does not apply to {verb}.", why=why)
        return self


NOTHING = Filters()


def parse(words: Iterable[str]) -> Filters:
    """UsageError: a word is no filter, or no message can match all."""
    filters = NOTHING
    for word in words:
        filters = _both(filters, _one(word))
    if filters.error_group is not None:
        filters = _both(filters, Filters(state="error"))
    if filters.older is not None and filters.newer is not None and filters.older >= filters.newer:
        raise UsageError(
            "No message can match these filters.",
            why=f"None is older than {_duration(filters.older)} and newer than "
            f"{_duration(filters.newer)}.",
        )
    if len(filters.payload) > MOST_PAYLOAD_FILTERS:
        raise UsageError(f"There can be at most {MOST_PAYLOAD_FILTERS} filters payload.PATH=VALUE.")
    return filters


def _one(word: str) -> Filters:
    if word.startswith(("payload.", "payload[")) and is_unicode(word) and "\0" not in word:
        return Filters(payload=(_payload(word),))
    term = LANGUAGE.term(word)
    return _READERS[f"{term.field}{term.operator}"](term.value)


def _seconds(name: str, value: str) -> float:
    seconds = round(parse_duration(value), 6)
    if seconds > _LONGEST_SECONDS:
        raise UsageError(f"The filter {name}= cannot be {value!r}.", why="That is over 50 years.")
    return seconds


def _number(name: str, value: str) -> int:
    if not _NUMBER.fullmatch(value) or not int(value):
        raise UsageError(
            f"The filter {name}= must be a whole number, not {value!r}.",
            next_step="1 or more; at most 15 digits.",
        )
    return int(value)


def _error_group(value: str) -> Filters:
    from console.monitor.wording import require_key  # noqa: PLC0415  # its patterns are large

    return Filters(error_group=require_key(value))


_READERS: Mapping[str, Callable[[str], Filters]] = {
    "state=": lambda value: Filters(state=value),
    "older=": lambda value: Filters(older=_seconds("older", value)),
    "newer=": lambda value: Filters(newer=_seconds("newer", value)),
    "error~": lambda value: Filters(errors=(value,)),
    "error-group=": _error_group,
    "id=": lambda value: Filters(ids=(value,)),
    "claimed_by=": lambda value: Filters(claimed_by=value),
    "limit=": lambda value: Filters(limit=_number("limit", value)),
    "keep-newest=": lambda value: Filters(keep_newest=_number("keep-newest", value)),
}


def _payload(word: str) -> PayloadEquals:
    match = _PAYLOAD.fullmatch(word)
    if match is None:
        raise UsageError(
            f"The filter {word!r} cannot be read.",
            why="It is not of the form payload.PATH=VALUE.",
            next_step='Examples: payload.customer.id=42, payload.items[0].sku=A1, payload."a.b"=x.',
        )
    return PayloadEquals(tuple(map(_key, _STEP.finditer(match["path"]))), match["value"])


def _key(step: re.Match[str]) -> str | int:
    if step["index"] is not None:
        return int(step["index"])
    if step["quoted"] is None:
        return step["bare"]
    try:
        key = json.loads(step["quoted"])
    except ValueError:
        raise UsageError(f"The key {step['quoted']} is not a JSON string.") from None
    if "\0" in key or not is_unicode(key):
        raise UsageError(f"The key {step['quoted']} contains what no JSON in a database can.")
    return str(key)


def _step(key: str | int) -> str:
    if isinstance(key, int):
        return f"[{key}]"
    return f".{key}" if _BARE_KEY.fullmatch(key) else f".{json.dumps(key)}"


def _both(filters: Filters, other: Filters) -> Filters:
    return Filters(
        state=_same("state", filters.state, other.state),
        older=_chosen(max, filters.older, other.older),
        newer=_chosen(min, filters.newer, other.newer),
        errors=_united(filters.errors, other.errors),
        error_group=_same("error-group", filters.error_group, other.error_group),
        ids=_united(filters.ids, other.ids),
        claimed_by=_same("claimed_by", filters.claimed_by, other.claimed_by),
        payload=_united(filters.payload, other.payload),
        limit=_chosen(min, filters.limit, other.limit),
        keep_newest=_chosen(max, filters.keep_newest, other.keep_newest),
    )


def _same(name: str, one: str | None, other: str | None) -> str | None:
    if one is not None and other is not None and one != other:
        raise UsageError(
            "No message can match these filters.", why=f"{name} is both {one!r} and {other!r}."
        )
    return one if other is None else other


def _chosen(choose: Callable[[Number, Number], Number], *given: Number | None) -> Number | None:
    one, other = given
    if one is None or other is None:
        return one if other is None else other
    return choose(one, other)


def _united(items: tuple[Item, ...], other: tuple[Item, ...]) -> tuple[Item, ...]:
    return (*items, *(item for item in other if item not in items))


def _duration(seconds: float) -> str:
    return f"{seconds:.6f}".rstrip("0").rstrip(".") + "s"
