"""Hostile texts: to a terminal, SQL, markup, formats, and to a reader in a hurry."""

import unicodedata
from collections.abc import Callable
from typing import TypeVar

from hypothesis import settings
from hypothesis import strategies as st

from console.errors import ConsoleError

T = TypeVar("T")

COSTLY = settings(max_examples=10 if settings().derandomize else 500)
"""For examples that write files: few in the short tier, many with --long."""

CANARY = "canary"
"""A table that must still exist afterwards, with all its rows."""

TEXTS = [
    "\x1b[31mred\x1b[0m",
    "\x1b]0;title\x07",
    "\x1b[2J\x1b[H",
    "\x9b2Jc1",
    "\x90+q544e\x9c",
    "a\rb\x08\x08c\x0b\x0c\x7f",
    "two\nlines: all clear",
    "abc\u202edcba\u202c",
    "zero\u200bwidth\ufeff",
    "line\u2028and paragraph\u2029",
    "[red]markup[/red] [@click=app.quit]x[/]",
    "[/] [[ ]] \\[",
    "# head\n| a | b |\n`code` **bold** <b>",
    f"x'; DROP TABLE {CANARY}; --",
    f'x"; DROP TABLE {CANARY}; --',
    f"$dbq$; DROP TABLE {CANARY}; $dbq$ $$",
    f"*/ DROP TABLE {CANARY}; /*",
    "%s %d %(name)s %%n",
    "{queue} {0.__class__} ${env:HOME}",
    ":name ::text",
    "../../etc/passwd",
    "--yes",
    "-",
    "@late",
    "NULL",
    "\ud7ff\ue000\U0010ffff",
    "e\u0301\u200d\U0001f468\u200d\U0001f469",
    "\u0661\u0662",
    " ",
]

_SIGNS = "ab\"'[]{}()$%:@=~;,.\\/ \t\n\r\x1b\x9b\u202e\u2028é\N{GRINNING FACE}#|"

texts = st.one_of(
    st.sampled_from(TEXTS), st.text(max_size=30), st.text(st.sampled_from(_SIGNS), max_size=20)
)
"""Any text, even with unpaired surrogates."""

valid_texts = texts.map(lambda text: text.encode(errors="replace").decode().replace("\0", ""))
"""Those that a database accepts."""


def control_characters(shown: str, *, but: str = "\n") -> list[str]:
    """The characters of a text that a terminal would execute, hide or reverse."""
    hidden = {"Cc", "Cf", "Cs", "Zl", "Zp"}
    return sorted({s for s in shown if unicodedata.category(s) in hidden and s not in but})


def outcome(call: Callable[[], T]) -> T | ConsoleError:
    """The result of a call or its error; any other exception is a traceback."""
    try:
        return call()
    except ConsoleError as error:
        return error
