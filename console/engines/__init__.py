"""What differs per database product, and how to open a database of any of them."""

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from console.engines import mssql, postgresql
from console.engines.database import Database, Session
from console.engines.product import Capabilities, Product, Timeouts
from console.engines.retry import again
from console.engines.waiting import patience, unhurried
from console.errors import UsageError

__all__ = [
    "PRODUCTS",
    "Capabilities",
    "Database",
    "Product",
    "Session",
    "Timeouts",
    "again",
    "open_database",
    "patience",
    "product",
    "unhurried",
]

PRODUCTS: dict[str, Product] = {
    product.name: product for product in (postgresql.PRODUCT, mssql.PRODUCT)
}
"""Every engine this console knows, by the name that SQLAlchemy's dialect has."""

_EXAMPLE = "postgresql+psycopg://user@host:5432/database"


def product(name: str) -> Product:
    """The engine of that name; UsageError where there is none."""
    if name not in PRODUCTS:
        raise UsageError(
            f"The engine {name!r} is not known.",
            next_step=f"Engines: {', '.join(sorted(PRODUCTS))}.",
        )
    return PRODUCTS[name]


def parse_url(url: str) -> URL:
    """The URL, checked; the error never repeats it, for it may hold a password."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise UsageError(
            "The connection URL cannot be read.",
            why="It has not the form dialect+driver://user@host:port/database.",
            next_step=f"Example: {_EXAMPLE}",
        ) from None
    if parsed.get_backend_name() not in PRODUCTS:
        raise UsageError(
            f"The connection URL names an unknown engine: {parsed.get_backend_name()!r}.",
            next_step=f"Engines: {', '.join(sorted(PRODUCTS))}. Example: {_EXAMPLE}",
        )
    return parsed


def label_of(url: URL) -> str:
    """How a connection is called where no profile names it: no user, no password."""
    return product(url.get_backend_name()).label(url)


def open_database(
    url: str,
    *,
    timeouts: Timeouts | None = None,
    application_name: str = "dbq-console",
    label: str | None = None,
) -> Database:
    """A database by its SQLAlchemy URL. Connects at the first use, not here."""
    parsed = parse_url(url)
    return Database(
        product(parsed.get_backend_name()),
        parsed,
        timeouts=timeouts or Timeouts(),
        application_name=application_name,
        label=label or label_of(parsed),
    )
