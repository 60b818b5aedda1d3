"""The command line that does or shows the same as a screen."""

import shlex
from collections.abc import Iterable

from console.tui.board import Key
from console.tui.places import Place


def twin(place: Place | None, verb: str, key: Key | None = None, words: Iterable[str] = ()) -> str:
    """`dbq-console messages orders --schema public --profile prod --filter state=error`."""
    name = [] if key is None else ["--schema", key[1]]
    # A name that begins like an option is one all the same after "--".
    last = [] if key is None else (["--", key[2]] if key[2].startswith("-") else [key[2]])
    where = () if place is None else place.words
    return shlex.join(["dbq-console", verb, *name, *where, *words, *last])
