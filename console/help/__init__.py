"""The topics of `dbq-console help`: a page of Markdown each, in this folder or a feature's."""

import difflib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from console import features
from console.errors import UsageError


@dataclass(frozen=True)
class Topic:
    """One page. Its first line is `# Title: what is in it`."""

    name: str
    text: str

    @property
    def summary(self) -> str:
        return self.text.partition("\n")[0].partition(": ")[2]


@cache
def topics() -> dict[str, Topic]:
    """All pages by name, in the order of the alphabet."""
    files = (*Path(__file__).parent.iterdir(), *features.files("help"))
    pages = [file for file in files if file.name.endswith(".md")]
    return {
        name: Topic(name, page.read_text(encoding="utf-8"))
        for name, page in sorted((page.name.removesuffix(".md"), page) for page in pages)
    }


def topic(name: str) -> Topic:
    """The page of that name; else UsageError, with those that are near."""
    found = topics()
    if name not in found:
        near = difflib.get_close_matches(name, found, n=3, cutoff=0.5)
        raise UsageError(
            f"There is no help topic {name!r}.",
            next_step=f"Did you mean: {', '.join(near)}?"
            if near
            else f"Topics: {', '.join(found)}.",
        )
    return found[name]
