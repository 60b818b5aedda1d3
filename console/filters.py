"""The language of filters: words, all of which must match.

A word is a term, `error~time-out`: a field, an operator, a value. What is filtered declares its
fields: messages (`monitor.filters`), what a lake has (`pipeline.filters`), the overview's queues
(`tui.views`), the lists (`views`). The last two also take words that are no term.
"""

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from console.errors import UsageError

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
      (?P<head>(?<!=)[A-Za-z_/-]+(?:[<>]=|[=~<>]))?
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


_TERM = re.compile(r"(?P<field>[A-Za-z_/-]+)(?P<operator>[<>]=|[=~<>])(?P<value>.*)", re.DOTALL)


@dataclass(frozen=True)
class Term:
    """`~`: contains; the other operators compare."""

    field: str
    operator: str
    value: str

    @property
    def word(self) -> str:
        return f"{self.field}{self.operator}{self.value}"


def term_of(word: str) -> Term | None:
    """None: it is no term."""
    match = _TERM.fullmatch(word)
    return None if match is None else Term(**match.groupdict())


_LONGEST_VALUE = 10_000


@dataclass(frozen=True)
class Language:
    """The terms that can be given. `forms`: the syntax of each, as `error~TEXT`."""

    forms: tuple[str, ...]

    @cached_property
    def _known(self) -> set[str]:
        """Each field with its operator."""
        terms = filter(None, map(term_of, self.forms))
        return {f"{term.field}{term.operator}" for term in terms}

    def term(self, word: str) -> Term:
        """UsageError, which says what was meant, perhaps."""
        if "\0" in word or not is_unicode(word):
            raise UsageError(
                "A filter cannot be read.",
                why="It contains NUL or is not valid Unicode: no message does.",
            )
        term = term_of(word)
        if term is None:
            raise self._unreadable(word, "It is not of the form name=value.")
        readable = f"{term.field}{term.operator}"
        if readable not in self._known:
            raise self._unreadable(word, f"There is no filter {readable!r}.", term.field)
        if not 0 < len(term.value) <= _LONGEST_VALUE:
            why = f"{readable} needs a value of 1 to {_LONGEST_VALUE:,} characters."
            raise self._unreadable(word, why)
        return term

    def _unreadable(self, word: str, why: str, name: str = "") -> UsageError:
        starts = {re.split("[=~.<>]", form)[0]: form for form in self.forms}
        near = difflib.get_close_matches(name.lower().replace("_", "-"), starts, n=1)
        near = near or difflib.get_close_matches(name.lower(), starts, n=1)
        known = f"Did you mean: {starts[near[0]]}" if near else f"Filters: {', '.join(self.forms)}."
        return UsageError(f"The filter {word!r} cannot be read.", why=why, next_step=known)


ARCHIVED = Language(
    (
        *("id=I", "state=S", "error=E", "error~T", "reason=R", "reason~T", "title=T", "title~T"),
        *("payload~T", "more~T", "since=TIME", "until=TIME"),
    )
)
"""Of archived messages: of several `id=`, any; `since` and `until` are about when they were."""


def is_unicode(text: str) -> bool:
    return not any("\ud800" <= sign <= "\udfff" for sign in text)
