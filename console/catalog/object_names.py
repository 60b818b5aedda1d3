"""The names of a queue's objects, and the resulting limit on its own name."""

from __future__ import annotations

from console.catalog import Kind, Queue
from console.catalog.name_patterns import suffixes, used
from console.engines import Product
from console.errors import UsageError


def limit(
    product: Product, design: str, schema: str, partitions: int = 0, subscribers: int = 0
) -> tuple[int, str]:
    """The longest name that a queue of the design can have, and the suffix that limits it.

    Units as `Product.name_length`: bytes for PostgreSQL. Objects without a schema (Service
    Broker's) have the schema's name in their own.
    """
    lengths = {
        (product.name_length(f"{schema}." * bool(before) + suffix), suffix)
        for before, suffix in suffixes(product.name, design, partitions, subscribers)
    }
    length, longest = max(lengths)
    return product.name_limit - length, longest


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
        product, queue.design.name, queue.schema, queue.partitions, queue.highest_subscriber
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
    named = {name.format_map(values) for name in used(product.name, queue.design.name)}
    return sorted({*with_rows(product, queue), *named})


def of(product: Product, queue: Queue) -> list[str]:
    """All possible names of the queue's tables, sequences and functions."""
    if not queue.design.known:
        return [queue.name]
    numbers = queue.partitions, queue.highest_subscriber
    found = suffixes(product.name, queue.design.name, *numbers)
    return sorted({queue.name + suffix for _, suffix in found})
