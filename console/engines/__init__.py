"""The database products, and how to open a database of any of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from console.engines import mssql, postgresql
from console.engines.database import (
    CONSUMERS,
    ROW_SECURITY,
    Database,
    Session,
    lock_limit,
    no_timeout,
    retry_transient,
    time_limit,
    within_lock_limit,
)
from console.engines.hosts import with_hosts
from console.engines.product import THIS_MACHINE, TRANSPORT, Capabilities, Product, Timeouts
from console.errors import UsageError
from console.sql import HasDialect

if TYPE_CHECKING:
    from sqlalchemy import URL

__all__ = [
    "CONSUMERS",
    "PRODUCTS",
    "ROW_SECURITY",
    "THIS_MACHINE",
    "TRANSPORT",
    "Capabilities",
    "Database",
    "Product",
    "Session",
    "Timeouts",
    "lock_limit",
    "no_timeout",
    "open_database",
    "product",
    "product_of",
    "retry_transient",
    "time_limit",
    "within_lock_limit",
]

PRODUCTS: dict[str, Product] = {
    product.name: product for product in (postgresql.PRODUCT, mssql.PRODUCT)
}
"""Every engine, by the name of SQLAlchemy's dialect."""

_EXAMPLE = "postgresql+psycopg://user@host:5432/database"
_ALIASES = {"postgres": "postgresql"}
"""Engine names that other tools accept in a URL and SQLAlchemy does not."""


def product(name: str) -> Product:
    """The engine of that name, or UsageError."""
    if name not in PRODUCTS:
        raise UsageError(
            f"The engine {name!r} is not known.",
            next_step=f"Engines: {', '.join(sorted(PRODUCTS))}.",
        )
    return PRODUCTS[name]


def product_of(on: HasDialect) -> Product:
    """The engine of a connection."""
    return product(on.dialect.name)


def parse_url(url: str) -> URL:
    """The URL, checked; errors never repeat it, because it may contain a password."""
    from sqlalchemy import make_url  # noqa: PLC0415  # a verb imports what it uses
    from sqlalchemy.exc import ArgumentError  # noqa: PLC0415

    try:
        parsed = with_hosts(make_url, url)
    except (ArgumentError, ValueError):
        raise UsageError(
            "The connection URL cannot be read.",
            why="It does not have the form dialect+driver://user@host:port/database.",
            next_step=f"Example: {_EXAMPLE}",
        ) from None
    parsed = parsed.set(drivername=_ALIASES.get(parsed.drivername, parsed.drivername))
    if parsed.get_backend_name() not in PRODUCTS:
        raise UsageError(
            f"The connection URL names an unknown engine: {parsed.get_backend_name()!r}.",
            next_step=f"Engines: {', '.join(sorted(PRODUCTS))}. Example: {_EXAMPLE}",
        )
    return parsed


def label_of(url: URL) -> str:
    """The name of a connection without a profile: no user, no password."""
    return product(url.get_backend_name()).label(url)


def open_database(
    url: str,
    *,
    timeouts: Timeouts | None = None,
    application_name: str = "dbq-console",
    label: str | None = None,
) -> Database:
    """A database by its SQLAlchemy URL; connects at first use."""
    parsed = parse_url(url)
    return Database(
        product(parsed.get_backend_name()),
        parsed,
        timeouts=timeouts or Timeouts(),
        application_name=application_name,
        label=label or label_of(parsed),
    )
