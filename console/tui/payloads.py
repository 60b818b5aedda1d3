"""A payload as rows of a screen: JSON as a tree, text, hex. All of it is shown, none obeyed."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import overload

from rich.cells import cell_len, chop_cells

from console.formats import plain
from console.tui.json_lines import Tree, json_lines

JSON_MOST = 1 << 20
"""A tree of more characters takes long to lay out and nobody reads it: it is shown as text."""
_INDENT = 2
_DEEPEST_INDENT = 24
"""Beyond so many levels lines stand no further to the right."""
_BYTE = re.compile("[\udc80-\udcff]")
_LEAST_WIDTH = 10
_ROWS_AT_ONCE = 50


class Form(StrEnum):
    """How a payload is shown."""

    JSON = "json"
    TEXT = "text"
    HEX = "hex"


@dataclass(frozen=True)
class Row:
    """One row of the screen, safe to show. `line`: which line of the payload it is of."""

    text: str
    line: int


@dataclass(frozen=True)
class Shown:
    """A payload in one form, as rows of a certain width."""

    form: Form
    rows: Sequence[Row]
    problem: str = ""
    """Why it is not in the form that was asked for."""
    ends: dict[int, int] = field(default_factory=dict)
    """Of JSON: the line that opens an object or an array -> the one that closes it."""


def form_of(payload: str | bytes) -> Form:
    """The form that tells most of it."""
    text = payload if isinstance(payload, str) else _as_text(payload)
    if text is None:
        return Form.HEX
    return Form.JSON if text.lstrip(" \t\r\n")[:1] in {"{", "["} else Form.TEXT


def _as_text(data: bytes) -> str | None:
    """What UTF-8 makes of it, if that is text; cut off within a letter it is one still."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        if error.reason != "unexpected end of data":
            return None
        text = data[: error.start].decode()
    return None if "\0" in text else text


def shown(
    payload: str | bytes,
    form: Form,
    width: int,
    *,
    cut: bool = False,
    closed: Collection[int] = (),
) -> Shown:
    """The payload (its beginning, if it is cut) in a form; `closed`: lines of JSON that are folded.

    It takes as long as the payload is; of hex nothing is made before it is seen.
    """
    width = max(_LEAST_WIDTH, width)
    if form is Form.HEX:
        data = payload if isinstance(payload, bytes) else payload.encode(errors="surrogatepass")
        return Shown(Form.HEX, HexRows(data, width))
    text = payload if isinstance(payload, str) else payload.decode(errors="surrogateescape")
    problem = ""
    if form is Form.JSON and len(text) > JSON_MOST:
        problem = f"as text: the tree ends at {JSON_MOST:,} characters"
    elif form is Form.JSON:
        tree = json_lines(text, cut=cut)
        if not tree.problem:
            return Shown(Form.JSON, _json_rows(tree, width, frozenset(closed)), ends=tree.ends)
        problem = f"not JSON: {tree.problem}"
    return Shown(Form.TEXT, _text_rows(text, width), problem)


# Text.


def safe(text: str) -> str:
    """Nothing in it moves the cursor, colours or turns; bytes that are no text are told as such."""
    if _BYTE.search(text):
        text = _BYTE.sub(lambda byte: f"<{ord(byte[0]) - 0xDC00:02X}>", text)
    return plain(text)


def _text_rows(text: str, width: int) -> list[Row]:
    rows: list[Row] = []
    # A line without an end is taken in parts: the other threads shall have their turns.
    part = width * _ROWS_AT_ONCE
    for at, line in enumerate(text.split("\n")):
        for start in range(0, max(1, len(line)), part):
            rows += [Row(row, at) for row in _folded(safe(line[start : start + part]), width)]
    return rows


def _folded(text: str, width: int, indent: int = 0) -> list[str]:
    """The text in rows of at most that width; those after the first are indented."""
    if len(text) <= width and cell_len(text) <= width:
        return [text]
    room = max(_LEAST_WIDTH // 2, width - indent)
    if text.isascii():
        pieces = [text[:width], *(text[at : at + room] for at in range(width, len(text), room))]
    else:
        # The first piece may as well be as short as the others.
        part = room * _ROWS_AT_ONCE
        parts = (text[start : start + part] for start in range(0, len(text), part))
        pieces = [piece for one in parts for piece in chop_cells(one, room)]
    return [pieces[0], *(" " * indent + piece for piece in pieces[1:])]


# Hex.


class HexRows(Sequence[Row]):
    """Offset, bytes, and what of them is ASCII; each row is made when it is asked for."""

    def __init__(self, data: bytes, width: int) -> None:
        self._data = data
        self._most = 16 if width >= 76 else 8 if width >= 42 else 4

    def __len__(self) -> int:
        """At least one, of nothing."""
        return max(1, -(-len(self._data) // self._most))

    @overload
    def __getitem__(self, at: int) -> Row: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Row]: ...
    def __getitem__(self, at: int | slice) -> Row | Sequence[Row]:
        """One row, or some."""
        if isinstance(at, slice):
            return [self[one] for one in range(*at.indices(len(self)))]
        if not -len(self) <= at < len(self):
            raise IndexError(at)
        at %= len(self)
        start = at * self._most
        some = self._data[start : start + self._most]
        letters = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in some)
        return Row(f"{start:08x}  {some.hex(' '):<{3 * self._most - 1}}  {letters}", at)


# JSON.


def _json_rows(tree: Tree, width: int, closed: frozenset[int]) -> list[Row]:
    """Rows of all lines that are not within a closed one."""
    rows: list[Row] = []
    at, lines = 0, tree.lines
    while at < len(lines):
        depth, text = lines[at]
        end = tree.ends.get(at)
        mark = "  "
        line = at
        if end is not None and at in closed and end < len(lines):
            # The signs that open and close, and between them that there is more.
            text, mark = f"{text} … {lines[end][1]}  ({end - at - 1:,} lines)", "▸ "
            at = end
        elif end is not None:
            mark = "▾ "
        indent = _INDENT * min(depth, _DEEPEST_INDENT)
        indent = min(indent, width // 2)
        folded = _folded(safe(text), max(_LEAST_WIDTH, width - indent - len(mark)), _INDENT)
        for place, piece in enumerate(folded):
            rows.append(Row(" " * indent + (mark if place == 0 else "  ") + piece, line))
        at += 1
    return rows or [Row("", 0)]
