"""A payload as rows on a screen: a JSON tree, text or hex; control characters made visible."""

import os
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import overload

from rich.cells import cell_len, chop_cells

from console.catalog.audit import local_file
from console.errors import ConsoleError, UsageError
from console.formats import plain

# JSON laid out in lines.
#
# It is not parsed and written again: its own tokens are laid out, so that numbers, escapes and
# duplicate keys are shown as they were stored.

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
_EXPECTED = {
    "value": "a value",
    "key": "a key",
    "colon": "a colon",
    "comma": "a comma or the end",
    "nothing": "nothing",
}


@dataclass
class JsonLines:
    """The lines of a JSON text, each with its depth."""

    lines: list[tuple[int, str]] = field(default_factory=list)
    ends: dict[int, int] = field(default_factory=dict)
    problem: str = ""


def json_lines(text: str, *, cut: bool = False) -> JsonLines:
    """Lay out JSON. `problem` says why it is not valid; with `cut` it may end anywhere."""
    return _Layout(text, cut=cut).tree


class _Layout:
    """Goes through the tokens once, with a stack of open brackets."""

    def __init__(self, text: str, *, cut: bool) -> None:
        self.tree = JsonLines()
        self._text = text
        self._cut = cut
        self._open: list[tuple[str, int]] = []
        """The closing bracket, and the line of the opening one."""
        self._line = ""
        self._expected = "value"
        """What must come next: value, key, colon, comma (or a closing bracket), nothing."""
        self._may_close = False
        """Just after an opening bracket."""
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
            self._fail(rest, f"{self._text[rest : rest + 12]!r} is not valid there")
        elif rest < end:
            self._line += self._text[rest:]
        elif self._expected != "nothing" and not self._cut:
            self._fail(end, "it ends too soon" if self._text.strip() else "it is empty")
        self._end_line()

    def _may_be_cut(self, at: int) -> bool:
        """Whether the rest may be the beginning of a number or a word."""
        rest = self._text[at:]
        words = ("true", "false", "null")
        return re.fullmatch(r"-?[0-9.eE+-]*", rest) is not None or any(
            word.startswith(rest) for word in words
        )

    def _fail(self, at: int, why: str) -> None:
        self.tree.problem = f"{why} (character {at + 1:,})"

    def _take(self, match: re.Match[str]) -> bool:
        """Process a token; False if it is not valid here."""
        token = match[0].lstrip(" \t\r\n")
        at = match.end() - len(token)
        if match["sign"] is not None:
            return self._take_sign(token, at)
        if match["string"] is not None:
            closed = match["closed"] is not None
            if not closed and not self._cut:
                self._fail(at, "a string is not closed")
                return False
            if closed and (why := _bad_string(token)):
                self._fail(at, why)
                return False
            if self._expected == "key":
                self._line += token
                self._expected, self._may_close = "colon", False
                return True
        if self._expected != "value":
            self._fail(at, f"{token[:12]!r} instead of {_EXPECTED[self._expected]}")
            return False
        self._line += token
        self._end_value()
        return True

    def _take_sign(self, sign: str, at: int) -> bool:
        if sign in "{[" and self._expected == "value":
            self._line += sign
            self._open.append(("}" if sign == "{" else "]", len(self.tree.lines)))
            self._end_line(depth=len(self._open) - 1)
            self._expected, self._may_close = ("key" if sign == "{" else "value"), True
        elif sign in "}]" and self._open and self._closes(sign):
            _, opened = self._open.pop()
            if self._may_close:  # empty: it stays on one line
                _, line = self.tree.lines.pop()
                self._line = line + sign
            else:
                self._end_line(depth=len(self._open) + 1)
                self.tree.ends[opened] = len(self.tree.lines)
                self._line = sign
            self._end_value()
        elif sign == ":" and self._expected == "colon":
            self._line += ": "
            self._expected = "value"
        elif sign == "," and self._expected == "comma" and self._open:
            self._line += ","
            self._end_line()
            self._expected = "key" if self._open[-1][0] == "}" else "value"
        else:
            self._fail(at, f"{sign!r} instead of {_EXPECTED[self._expected]}")
            return False
        return True

    def _closes(self, sign: str) -> bool:
        return sign == self._open[-1][0] and (self._expected == "comma" or self._may_close)

    def _end_value(self) -> None:
        self._expected, self._may_close = ("comma" if self._open else "nothing"), False

    def _end_line(self, depth: int | None = None) -> None:
        if self._line:
            self.tree.lines.append((len(self._open) if depth is None else depth, self._line))
            self._line = ""


def _bad_string(token: str) -> str:
    """Why it is not a JSON string; empty if it is."""
    if _ESCAPES.sub("", token).count("\\"):
        return "a string has an escape unknown to JSON"
    return ""


_UNSAFE_CHARS = re.compile(r"[^A-Za-z0-9._-]+")


def folder() -> Path:
    """The default folder for saved payloads: the downloads, else the console's own."""
    downloads = Path.home() / "Downloads"
    return downloads if downloads.is_dir() else local_file().parent / "payloads"


def suggested_path(queue: str, message: str, extension: str) -> Path:
    name = _UNSAFE_CHARS.sub("_", f"{queue}-{message}")[:100].strip("._") or "payload"
    return folder() / f"{name}.{extension}"


def save(path: Path, payload: str | bytes) -> int:
    """Write it to a new file; returns its size. ConsoleError if that fails or the file exists."""
    data = payload if isinstance(payload, bytes) else payload.encode(errors="surrogatepass")
    path = path.expanduser()
    try:
        if path.parent == folder():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
    except FileExistsError:
        raise UsageError(
            f"{path} already exists.", next_step="Nothing was written: choose another name."
        ) from None
    except (OSError, ValueError) as error:
        raise ConsoleError(f"Could not write {path}.", why=str(error)) from error
    return len(data)


MAX_JSON_CHARS = 1 << 20
"""Longer JSON takes long to lay out, and nobody reads it: it is shown as text."""
_INDENT = 2
_DEEPEST_INDENT = 24
"""Deeper levels are not indented further."""
_BYTE = re.compile("[\udc80-\udcff]")
_LEAST_WIDTH = 10
_ROWS_AT_ONCE = 50


class PayloadForm(StrEnum):
    """How a payload is shown."""

    JSON = "json"
    TEXT = "text"
    HEX = "hex"


@dataclass(frozen=True)
class PayloadRow:
    """One row on the screen, safe to show. `line`: its line of the payload."""

    text: str
    line: int


@dataclass(frozen=True)
class PayloadLayout:
    """A payload in one form, as rows of a certain width."""

    form: PayloadForm
    rows: Sequence[PayloadRow]
    problem: str = ""
    """Why it is not in the requested form."""
    ends: dict[int, int] = field(default_factory=dict)
    """For JSON: the line that opens an object or array -> the line that closes it."""


def best_form(payload: str | bytes) -> PayloadForm:
    """JSON if it looks like JSON, else text, else hex."""
    text = payload if isinstance(payload, str) else _as_text(payload)
    if text is None:
        return PayloadForm.HEX
    return PayloadForm.JSON if text.lstrip(" \t\r\n")[:1] in {"{", "["} else PayloadForm.TEXT


def _as_text(data: bytes) -> str | None:
    """As UTF-8, or None; a character cut off at the end is ignored."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        if error.reason != "unexpected end of data":
            return None
        text = data[: error.start].decode()
    return None if "\0" in text else text


def lay_out(
    payload: str | bytes,
    form: PayloadForm,
    width: int,
    *,
    cut: bool = False,
    closed: Collection[int] = (),
) -> PayloadLayout:
    """The payload (`cut`: its beginning) in a form; `closed`: folded lines of JSON.

    The time grows with the payload; hex rows are only built when they are shown.
    """
    width = max(_LEAST_WIDTH, width)
    if form is PayloadForm.HEX:
        data = payload if isinstance(payload, bytes) else payload.encode(errors="surrogatepass")
        return PayloadLayout(PayloadForm.HEX, HexRows(data, width))
    text = payload if isinstance(payload, str) else payload.decode(errors="surrogateescape")
    problem = ""
    if form is PayloadForm.JSON and len(text) > MAX_JSON_CHARS:
        problem = f"as text: the tree ends at {MAX_JSON_CHARS:,} characters"
    elif form is PayloadForm.JSON:
        tree = json_lines(text, cut=cut)
        if not tree.problem:
            return PayloadLayout(
                PayloadForm.JSON, _json_rows(tree, width, frozenset(closed)), ends=tree.ends
            )
        problem = f"not JSON: {tree.problem}"
    return PayloadLayout(PayloadForm.TEXT, _text_rows(text, width), problem)


# Text.


def safe(text: str) -> str:
    """Without control characters; bytes that are not text are shown as `<FF>`."""
    if _BYTE.search(text):
        text = _BYTE.sub(lambda byte: f"<{ord(byte[0]) - 0xDC00:02X}>", text)
    return plain(text)


def _text_rows(text: str, width: int) -> list[PayloadRow]:
    rows: list[PayloadRow] = []
    # A very long line is processed in parts, so that other threads get their turn.
    part = width * _ROWS_AT_ONCE
    for at, line in enumerate(text.split("\n")):
        for start in range(0, max(1, len(line)), part):
            rows += [
                PayloadRow(row, at) for row in _folded(safe(line[start : start + part]), width)
            ]
    return rows


def _folded(text: str, width: int, indent: int = 0) -> list[str]:
    """The text wrapped to that width; rows after the first are indented."""
    if len(text) <= width and cell_len(text) <= width:
        return [text]
    room = max(_LEAST_WIDTH // 2, width - indent)
    if text.isascii():
        pieces = [text[:width], *(text[at : at + room] for at in range(width, len(text), room))]
    else:
        # For simplicity the first piece is as short as the others.
        part = room * _ROWS_AT_ONCE
        parts = (text[start : start + part] for start in range(0, len(text), part))
        pieces = [piece for one in parts for piece in chop_cells(one, room)]
    return [pieces[0], *(" " * indent + piece for piece in pieces[1:])]


# Hex.


class HexRows(Sequence[PayloadRow]):
    """Offset, bytes and ASCII; rows are built on access."""

    def __init__(self, data: bytes, width: int) -> None:
        self._data = data
        self._most = 16 if width >= 76 else 8 if width >= 42 else 4

    def __len__(self) -> int:
        """At least one, even if empty."""
        return max(1, -(-len(self._data) // self._most))

    @overload
    def __getitem__(self, at: int) -> PayloadRow: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[PayloadRow]: ...
    def __getitem__(self, at: int | slice) -> PayloadRow | Sequence[PayloadRow]:
        if isinstance(at, slice):
            return [self[one] for one in range(*at.indices(len(self)))]
        if not -len(self) <= at < len(self):
            raise IndexError(at)
        at %= len(self)
        start = at * self._most
        some = self._data[start : start + self._most]
        letters = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in some)
        return PayloadRow(f"{start:08x}  {some.hex(' '):<{3 * self._most - 1}}  {letters}", at)


# JSON.


def _json_rows(tree: JsonLines, width: int, closed: frozenset[int]) -> list[PayloadRow]:
    """Rows of all lines that are not folded away."""
    rows: list[PayloadRow] = []
    at, lines = 0, tree.lines
    while at < len(lines):
        depth, text = lines[at]
        end = tree.ends.get(at)
        mark = "  "
        line = at
        if end is not None and at in closed and end < len(lines):
            # Both brackets, and an ellipsis between them.
            text, mark = f"{text} … {lines[end][1]}  ({end - at - 1:,} lines)", "▸ "
            at = end
        elif end is not None:
            mark = "▾ "
        indent = _INDENT * min(depth, _DEEPEST_INDENT)
        indent = min(indent, width // 2)
        folded = _folded(safe(text), max(_LEAST_WIDTH, width - indent - len(mark)), _INDENT)
        for index, piece in enumerate(folded):
            rows.append(PayloadRow(" " * indent + (mark if index == 0 else "  ") + piece, line))
        at += 1
    return rows or [PayloadRow("", 0)]
