"""What the last statement of a session tells: whether it pops from a queue, or pushes to it."""

import re

from console import catalog, sql
from console.catalog import Kind, Queue
from console.engines import Product

POP, PUSH = "pop", "push"
_DOES = {
    **dict.fromkeys(("push", "push_many"), PUSH),
    **dict.fromkeys(("pop", "pop_many", "complete", "fail"), POP),
}
"""What follows the queue's name in those of its functions -> who calls them."""
_WRITES = r"(?P<verb>insert\s+into|update(?:\s+only)?|delete\s+from(?:\s+only)?|merge\s+into)\s+"
_SCHEMA = r'(?:(?<![\w$])(?P<schema>"[^"]+"|\[[^]]+\]|[\w$]+)\s*\.\s*)?'


def has_own_table(queue: Queue) -> bool:
    """Whether its table has no other queue's messages: then a statement tells which queue."""
    return queue.design.known and not queue.part


def names(product: Product, queue: Queue) -> dict[str, str]:
    """What a statement that pops or pushes has in it, as it is quoted -> what it does.

    Of a table that somebody else made the statement's own verb says that: here it is empty.
    """
    if not has_own_table(queue):
        return {}
    does = {queue.table: ""}
    if queue.kind is Kind.INSTALLED:
        there = set(catalog.object_names(product, queue))
        called = ((f"{queue.name}_{suffix}", does) for suffix, does in _DOES.items())
        does = {name: what for name, what in called if name in there}
    return {sql.quote_identifier(product.dialect, name)[1:-1]: of for name, of in does.items()}


def pattern(product: Product, queue: Queue) -> re.Pattern[str] | None:
    """How such a statement looks, with the schema or without; None: it cannot tell."""
    found = names(product, queue)
    if not found:
        return None
    named = "|".join(re.escape(name) for name in sorted(found, key=len, reverse=True))
    head = "" if queue.kind is Kind.INSTALLED else _WRITES
    return re.compile(rf'{head}{_SCHEMA}(?<![\w$])["\[]?(?P<name>{named})(?![\w$])', re.IGNORECASE)


def said(found: re.Pattern[str] | None, queue: Queue, text: str | None) -> set[str]:
    """What the statement tells that its session does at the queue."""
    does: set[str] = set()
    installed = queue.kind is Kind.INSTALLED
    # On somebody else's table the console itself does what looks like pops; it calls no function.
    if found is None or text is None or (not installed and "/* dbq " in text):
        return does
    for match in found.finditer(text):
        if (match["schema"] or queue.schema).strip('"[]').casefold() != queue.schema.casefold():
            continue
        if installed:
            does.add(_does(match["name"]))
        else:
            does.add(PUSH if match["verb"].lower().startswith("insert") else POP)
        if text.lstrip()[:6].lower() == "create":
            break  # a procedure's own text: it is the one that was called
    return does


def _does(function: str) -> str:
    ends = (does for suffix, does in _DOES.items() if function.lower().endswith(f"_{suffix}"))
    return next(ends)
