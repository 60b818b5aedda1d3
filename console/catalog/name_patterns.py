"""How the files of a design name what it stores: suffixes of a queue's name, and others' tables."""

from __future__ import annotations

import re
from functools import cache

from console.sql import templates


@cache
def suffixes(
    engine: str, design: str, partitions: int, subscribers: int
) -> frozenset[tuple[str | None, str]]:
    """The prefixes (or None) and suffixes of a queue's name in those of its objects.

    `subscribers`: their highest number.
    """
    texts = [
        s.template
        for file in (*templates.lineage(engine, design), "common")
        for s in templates.statements(engine, file).values()
    ]
    found = {(m[1], m[2]) for text in texts for m in _SUFFIX.finditer(text)}
    numbers = {"{partition}": range(partitions), "{subscriber_number}": range(1, subscribers + 1)}
    fixed = {(before, suffix) for before, suffix in found if "{" not in suffix}
    if not subscribers:
        fixed = {(before, suffix) for before, suffix in fixed if suffix not in _OF_SUBSCRIBERS}
    return frozenset(fixed) | {
        (before, suffix.replace(placeholder, str(number)))
        for before, suffix in found
        for placeholder, those in numbers.items()
        if placeholder in suffix
        for number in those
    }


_SUFFIX = re.compile(
    r"(\{schema\}\.)?\{queue\}((?:\w|\{partition\}|\{subscriber_number\})*)(?<!_)(?![\w{])"
)
_OF_SUBSCRIBERS = {"_subscribers", "_popped", "_swept", "_sweep"}
"""Objects that a ring has only with subscribers."""


@cache
def used(engine: str, design: str) -> frozenset[str]:
    """What a preset's files name in the library's schema, with placeholders."""
    texts = [
        text
        for file in templates.lineage(engine, design)
        for text in (
            *(s.template for s in templates.statements(engine, file).values()),
            *templates.definitions(engine, file).values(),
        )
    ]
    return frozenset(name for text in texts for name in _IN_SCHEMA.findall(text))


_IN_SCHEMA = re.compile(r"""[\["]\{schema\}["\]]\.["\[]?((?:\w|\{(?:table|beside|only)\})+)""")
