"""The filter language of `--filter` on one line: words with blanks between them.

A word with blanks in it stands in quotation marks, whole or from its value on, as in a shell:
`error~"no route"`, `'error~no route'`. Those in the path of a payload are the language's own.
"""

import re
from collections.abc import Iterable

from console.errors import UsageError

_WORD = re.compile(
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
    """The filters that a line means, one text each. UsageError where a quotation is not closed."""
    found, at = [], 0
    while at < len(line):
        if line[at].isspace():
            at += 1
            continue
        match = _WORD.match(line, at)
        if match is None or match.end() == at or not _ends(line, match.end()):
            raise UsageError(
                "The filter cannot be read.",
                why=f"A quotation mark in {line[at:]!r} has no other, or stands within a word.",
                next_step='A value with blanks: error~"no route to host"',
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
    """A line that means these words."""
    return " ".join(map(_written, words))


def _written(word: str) -> str:
    try:
        if word and words_of(word) == [word]:
            return word
    except UsageError:
        pass
    return '"' + re.sub(r'(["\\])', r"\\\1", word) + '"'
