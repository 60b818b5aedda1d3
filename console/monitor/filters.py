"""The filter language of `--filter`, parsed into one immutable value.

    state=error  older=10m  newer=1h  error~text  error-group=1-9f86d081884c7d65  id=17
    claimed_by=worker-1
    payload.customer.id=42  payload.items[0].sku=A1  payload."a.b"=x  limit=100  keep-newest=1000

A message must match all filters; of several `id=`, any. The callers bind the values and reject the
filters that do not apply to them.
"""

import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from console.errors import UsageError
from console.formats import parse_duration
from console.monitor.wording import require_key

# On one line, filters are words separated by blanks. A word with blanks is quoted as in a shell,
# whole or from its value on: `error~"no route"`, `'error~no route'`.

MARK = "@"
NAME = re.compile(r"[\w-]{1,64}")
"""The name of a saved filter."""

Words = Mapping[str, tuple[str, ...]]
"""Name of a saved filter -> its words, as for `--filter`."""


@dataclass(frozen=True)
class Saved:
    """Saved filters: of messages, and of the overview's table of queues."""

    messages: Words = field(default_factory=dict)
    queues: Mapping[str, str] = field(default_factory=dict)
    """Name -> the text after `/`."""


def expand(words: Iterable[str], saved: Words) -> tuple[str, ...]:
    """The words with saved filters replaced. UsageError: no such filter."""
    found: list[str] = []
    for word in words:
        found += _saved_words(word.removeprefix(MARK), saved) if word.startswith(MARK) else [word]
    return tuple(found)


def _saved_words(name: str, saved: Words) -> tuple[str, ...]:
    if name in saved:
        return saved[name]
    near = difflib.get_close_matches(name, saved, n=3)
    known = f"There are: {', '.join(saved)}." if saved else "None is saved for this connection."
    raise UsageError(
        f"There is no saved filter {name!r}.",
        why=known,
        next_step=f"Did you mean: {', '.join(MARK + one for one in near)}?" if near else "",
    )


_PIECE = re.compile(
    r"""
      '(?P<single>[^']*)'
    | "(?P<double>(?:[^"\\]|\\.)*)"
    | (?P<path>payload(?:[.\[](?:"(?:[^"\\]|\\.)*"|[^\s"'=])*)+=)?
      (?P<head>(?<!=)[A-Za-z_-]+[=~])?
      (?: "(?P<quoted>(?:[^"\\]|\\.)*)" | '(?P<literal>[^']*)' | (?P<bare>[^\s"']\S*)? )
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


def words_of(line: str) -> list[str]:
    """The words of a line. UsageError: a quotation is not closed."""
    found, at = [], 0
    while at < len(line):
        if line[at].isspace():
            at += 1
            continue
        match = _PIECE.match(line, at)
        if match is None or match.end() == at or not _ends(line, match.end()):
            raise UsageError(
                "The filter cannot be read.",
                why=f"A quotation mark in {line[at:]!r} is not closed, or is inside a word.",
                next_step='A value with spaces: error~"no route to host"',
            )
        found.append(_word(match))
        at = match.end()
    return found


def _ends(line: str, at: int) -> bool:
    return at == len(line) or line[at].isspace()


def _word(match: re.Match[str]) -> str:
    if match["single"] is not None:
        return match["single"]
    if match["double"] is not None:
        return _ESCAPED.sub(r"\1", match["double"])
    quoted = match["quoted"]
    value = match["literal"] or match["bare"] or ""
    if quoted is not None:
        value = _ESCAPED.sub(r"\1", quoted)
    return (match["path"] or "") + (match["head"] or "") + value


def line_of(words: Iterable[str]) -> str:
    return " ".join(map(_written, words))


def _written(word: str) -> str:
    try:
        if word and words_of(word) == [word]:
            return word
    except UsageError:
        pass
    return '"' + re.sub(r'(["\\])', r"\\\1", word) + '"'


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
MOST_PAYLOAD_FILTERS = 4

_WORD = re.compile(r"(?P<name>[A-Za-z_-]+)(?P<sign>[=~])(?P<value>.*)", re.DOTALL)
_PAYLOAD = re.compile(
    r'payload(?P<path>(?:\.(?:"(?:[^"\\]|\\.)*"|[^."=\[\]\s]+)|\[[0-9]{1,9}\])+)=(?P<value>.*)',
    re.DOTALL,
)
_STEP = re.compile(r'\.(?:(?P<quoted>"(?:[^"\\]|\\.)*")|(?P<bare>[^."=\[\]]+))|\[(?P<index>\d+)\]')
_BARE_KEY = re.compile(r'[^."=\[\]\s]+')
_LONGEST_SECONDS = 50 * 366 * 86400.0
_LONGEST_VALUE = 10_000
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
    found = NOTHING
    for word in words:
        found = _both(found, _one(word))
    if found.error_group is not None:
        found = _both(found, Filters(state="error"))
    if found.older is not None and found.newer is not None and found.older >= found.newer:
        raise UsageError(
            "No message can match these filters.",
            why=f"None is older than {_duration(found.older)} and newer than "
            f"{_duration(found.newer)}.",
        )
    if len(found.payload) > MOST_PAYLOAD_FILTERS:
        raise UsageError(f"There can be at most {MOST_PAYLOAD_FILTERS} filters payload.PATH=VALUE.")
    return found


def _one(word: str) -> Filters:
    if "\0" in word or not _is_unicode(word):
        raise UsageError(
            "A filter cannot be read.",
            why="It contains NUL or is not valid Unicode: no message does.",
        )
    if word.startswith(("payload.", "payload[")):
        return Filters(payload=(_payload(word),))
    match = _WORD.fullmatch(word)
    if match is None:
        raise _unreadable(word, "It is not of the form name=value.")
    name, value = match["name"], match["value"]
    readable = f"{name}{match['sign']}"
    if readable not in _READERS:
        raise _unreadable(word, f"There is no filter {readable!r}.", name)
    if not 0 < len(value) <= _LONGEST_VALUE:
        raise _unreadable(word, f"{readable} needs a value of 1 to {_LONGEST_VALUE:,} characters.")
    return _READERS[readable](value)


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


_READERS = {
    "state=": lambda value: Filters(state=value),
    "older=": lambda value: Filters(older=_seconds("older", value)),
    "newer=": lambda value: Filters(newer=_seconds("newer", value)),
    "error~": lambda value: Filters(errors=(value,)),
    "error-group=": lambda value: Filters(error_group=require_key(value)),
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
    if "\0" in key or not _is_unicode(key):
        raise UsageError(f"The key {step['quoted']} contains what no JSON in a database can.")
    return str(key)


def _step(key: str | int) -> str:
    if isinstance(key, int):
        return f"[{key}]"
    return f".{key}" if _BARE_KEY.fullmatch(key) else f".{json.dumps(key)}"


def _both(one: Filters, other: Filters) -> Filters:
    return Filters(
        state=_same("state", one.state, other.state),
        older=_chosen(max, one.older, other.older),
        newer=_chosen(min, one.newer, other.newer),
        errors=_united(one.errors, other.errors),
        error_group=_same("error-group", one.error_group, other.error_group),
        ids=_united(one.ids, other.ids),
        claimed_by=_same("claimed_by", one.claimed_by, other.claimed_by),
        payload=_united(one.payload, other.payload),
        limit=_chosen(min, one.limit, other.limit),
        keep_newest=_chosen(max, one.keep_newest, other.keep_newest),
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


def _united(one: tuple[Item, ...], other: tuple[Item, ...]) -> tuple[Item, ...]:
    return (*one, *(item for item in other if item not in one))


def _unreadable(word: str, why: str, name: str = "") -> UsageError:
    starts = {re.split("[=~.]", form)[0]: form for form in FORMS}
    near = difflib.get_close_matches(name.lower().replace("_", "-"), starts, n=1)
    near = near or difflib.get_close_matches(name.lower(), starts, n=1)
    known = f"Did you mean: {starts[near[0]]}" if near else f"Filters: {', '.join(FORMS)}."
    return UsageError(f"The filter {word!r} cannot be read.", why=why, next_step=known)


def _duration(seconds: float) -> str:
    return f"{seconds:.6f}".rstrip("0").rstrip(".") + "s"


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= sign <= "\udfff" for sign in text)
