"""The names of a queue's objects, and the resulting limit on its own name."""

from __future__ import annotations

import re
from functools import cache

from console.catalog import Kind, Queue
from console.engines import Product
from console.errors import UsageError
from console.sql import templates


def limit(
    product: Product, design: str, schema: str, partitions: int = 0, subscribers: int = 0
) -> tuple[int, str]:
    """The longest name that a queue of the design can have, and the suffix that limits it.

    Units as `Product.name_length`: bytes for PostgreSQL. Objects without a schema (Service
    Broker's) have the schema's name in their own.
    """
    lengths = {
        (product.name_length(f"{schema}." * bool(before) + suffix), suffix)
        for before, suffix in _suffixes(product.name, design, partitions, subscribers)
    }
    length, longest = max(lengths)
    return product.name_limit - length, longest


@cache
def _suffixes(
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


def check(product: Product, queue: Queue) -> None:
    for what, about, name in (("queue", "name", queue.name), ("schema", "schema", queue.schema)):
        if not name:
            raise UsageError(f"The name of a {what} cannot be empty.", about=about)
        if "\0" in name:
            raise UsageError(f"The name of a {what} cannot contain the character NUL.", about=about)
        try:
            name.encode()
        except UnicodeEncodeError:
            why = f"The name of the {what} is not valid Unicode."
            raise UsageError(why, about=about) from None
    if (length := product.name_length(queue.schema)) > product.name_limit:
        raise UsageError(
            f"The schema's name is too long: {length} {product.name_unit}, "
            f"at most {product.name_limit}.",
            next_step="Check the schema's name.",
            about="schema",
        )
    most, suffix = limit(
        product, queue.design.name, queue.schema, queue.partitions, _highest_subscriber(queue)
    )
    length = product.name_length(queue.name)
    if length > most:
        raise UsageError(
            f"The queue's name is too long: {length} {product.name_unit}, at most {most}.",
            why=(
                f"{product.title} allows names of {product.name_limit} {product.name_unit}, "
                f"and the longest object of the queue is <queue>{suffix}."
            ),
            next_step="Choose a shorter name.",
            about="name",
        )


def with_rows(product: Product, queue: Queue) -> list[str]:
    """Names of the queue's objects with its messages; others may have the same names."""
    if queue.kind is not Kind.ADOPTED:
        return of(product, queue)
    sequences = [name for role, name in queue.roles.items() if role.endswith("_sequence")]
    return [queue.table, *sequences]


def lockable(product: Product, queue: Queue) -> list[str]:
    """The same with all that the queue's statements use, of a library's: who locks one of these
    stops the queue."""
    if queue.kind is not Kind.ADOPTED or not queue.design.library:
        return with_rows(product, queue)
    values = queue.scope(product).values
    used = {name.format_map(values) for name in _used(product.name, queue.design.name)}
    return sorted({*with_rows(product, queue), *used})


@cache
def _used(engine: str, design: str) -> frozenset[str]:
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


def of(product: Product, queue: Queue) -> list[str]:
    """All possible names of the queue's tables, sequences and functions."""
    if not queue.design.known:
        return [queue.name]
    subscribers = _highest_subscriber(queue)
    suffixes = _suffixes(product.name, queue.design.name, queue.partitions, subscribers)
    return sorted({queue.name + suffix for _, suffix in suffixes})


def _highest_subscriber(queue: Queue) -> int:
    return max((subscriber.number for subscriber in queue.subscribers), default=0)
