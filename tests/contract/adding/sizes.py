"""List the tables of a database with their sizes.

\b
Examples:
  dbq-console sizes orders
  dbq-console sizes --least 8192 --json
"""

from collections.abc import Sequence
from dataclasses import dataclass

from console import sql
from console.formats import megabytes, plain
from console.verbs.parameters import Parameter, WholeNumber
from console.views.view import Column, Display, Source, Subject, View


@dataclass(frozen=True)
class Table:
    """A table, and its bytes on disk."""

    schema: str
    name: str
    bytes: int


def read(source: Source) -> list[Table]:
    """Those of at least so many bytes."""
    with source.database.transaction("read the sizes", read_only=True) as connection:
        tables = sql.rows(connection, Table, "sizes.tables", queue=source.name)
    return [table for table in tables if table.bytes >= source.values["least"]]


def _columns(_: Display) -> Sequence[Column[Table]]:
    return (
        Column("schema", "schema", lambda table: plain(table.schema), "quiet"),
        Column("name", "table", lambda table: plain(table.name), "strong"),
        Column(
            *("bytes", "size", lambda table: megabytes(table.bytes)),
            align_right=True,
            sort_key=lambda table: table.bytes,
        ),
    )


VIEW = View(
    "sizes",
    __doc__,
    read,
    lambda tables: {repr((table.schema, table.name)): table for table in tables},
    _columns,
    subject=Subject.DATABASE,
    parameters=(
        Parameter("least", "Only from so many bytes.", WholeNumber(0), default="0", metavar="N"),
    ),
    empty="No tables.",
)
