"""A JSON text laid out in lines.

It is not read into values and written again: its own signs are laid out, so that every number,
every escape and every key that comes twice stands there as it was stored.
"""

import re
from dataclasses import dataclass, field

_TOKEN = re.compile(
    r"""[\ \t\r\n]*(?:
        (?P<string>"[^"\\]*(?:\\.[^"\\]*)*(?:(?P<closed>")|\\?))
      | (?P<number>-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)
      | (?P<word>true|false|null)
      | (?P<sign>[{}\[\],:])
    )""",
    re.VERBOSE | re.DOTALL,
)
_BLANK = re.compile(r"[ \t\r\n]*")
_ESCAPES = re.compile(r"\\(?:[\"\\/bfnrt]|u[0-9a-fA-F]{4})")
_WANTED = {
    "value": "a value",
    "key": "a key",
    "colon": "a colon",
    "comma": "a comma or an end",
    "nothing": "nothing",
}


@dataclass
class Tree:
    """The lines of a JSON text: how deep each is, and its own signs."""

    lines: list[tuple[int, str]] = field(default_factory=list)
    ends: dict[int, int] = field(default_factory=dict)
    problem: str = ""


def json_lines(text: str, *, cut: bool = False) -> Tree:
    """Laid out. `problem` says why it is not JSON; one that is cut may end anywhere."""
    return _Layout(text, cut=cut).tree


class _Layout:
    """Goes through the signs once, with a stack of what is open."""

    def __init__(self, text: str, *, cut: bool) -> None:
        self.tree = Tree()
        self._text = text
        self._cut = cut
        self._open: list[tuple[str, int]] = []
        """The sign that closes, and the line of the one that opened."""
        self._line = ""
        self._wants = "value"
        """What must come: value, key, colon, comma (or the end of what is open), nothing."""
        self._may_close = False
        """Right behind an opening sign."""
        self._run()

    def _run(self) -> None:
        at = 0
        end = len(self._text)
        while True:
            match = _TOKEN.match(self._text, at)
            if match is None:
                break
            if not self._take(match):
                return
            at = match.end()
        blank = _BLANK.match(self._text, at)
        rest = blank.end() if blank else at
        if rest < end and not (self._cut and end - rest < 64 and self._may_be_cut(rest)):
            self._fail(rest, f"{self._text[rest : rest + 12]!r} means nothing there")
        elif rest < end:
            self._line += self._text[rest:]
        elif self._wants != "nothing" and not self._cut:
            self._fail(end, "it ends too soon" if self._text.strip() else "it is empty")
        self._end_line()

    def _may_be_cut(self, at: int) -> bool:
        """Whether what is left may be the beginning of a number or a word."""
        rest = self._text[at:]
        words = ("true", "false", "null")
        return re.fullmatch(r"-?[0-9.eE+-]*", rest) is not None or any(
            word.startswith(rest) for word in words
        )

    def _fail(self, at: int, why: str) -> None:
        self.tree.problem = f"{why} (character {at + 1:,})"

    def _take(self, match: re.Match[str]) -> bool:
        """One sign, number, word or string; False where it cannot stand there."""
        token = match[0].lstrip(" \t\r\n")
        at = match.end() - len(token)
        if match["sign"] is not None:
            return self._take_sign(token, at)
        if match["string"] is not None:
            whole = match["closed"] is not None
            if not whole and not self._cut:
                self._fail(at, "a string is not closed")
                return False
            if whole and (why := _bad_string(token)):
                self._fail(at, why)
                return False
            if self._wants == "key":
                self._line += token
                self._wants, self._may_close = "colon", False
                return True
        if self._wants != "value":
            self._fail(at, f"{token[:12]!r} stands where {_WANTED[self._wants]} should")
            return False
        self._line += token
        self._value_ended()
        return True

    def _take_sign(self, sign: str, at: int) -> bool:
        if sign in "{[" and self._wants == "value":
            self._line += sign
            self._open.append(("}" if sign == "{" else "]", len(self.tree.lines)))
            self._end_line(depth=len(self._open) - 1)
            self._wants, self._may_close = ("key" if sign == "{" else "value"), True
        elif sign in "}]" and self._open and self._closes(sign):
            _, opened = self._open.pop()
            if self._may_close:  # nothing is in it: it stays on its line
                _, line = self.tree.lines.pop()
                self._line = line + sign
            else:
                self._end_line(depth=len(self._open) + 1)
                self.tree.ends[opened] = len(self.tree.lines)
                self._line = sign
            self._value_ended()
        elif sign == ":" and self._wants == "colon":
            self._line += ": "
            self._wants = "value"
        elif sign == "," and self._wants == "comma" and self._open:
            self._line += ","
            self._end_line()
            self._wants = "key" if self._open[-1][0] == "}" else "value"
        else:
            self._fail(at, f"{sign!r} stands where {_WANTED[self._wants]} should")
            return False
        return True

    def _closes(self, sign: str) -> bool:
        return sign == self._open[-1][0] and (self._wants == "comma" or self._may_close)

    def _value_ended(self) -> None:
        self._wants, self._may_close = ("comma" if self._open else "nothing"), False

    def _end_line(self, depth: int | None = None) -> None:
        if self._line:
            self.tree.lines.append((len(self._open) if depth is None else depth, self._line))
            self._line = ""


def _bad_string(token: str) -> str:
    """Why it is no string of JSON; empty: it is one."""
    if _ESCAPES.sub("", token).count("\\"):
        return "a string has an escape that JSON has not"
    return ""
