"""A server with PostgreSQL's SQL and protocol, under another name."""

from collections.abc import Callable
from functools import cached_property

from sqlalchemy import URL, Engine
from sqlalchemy.engine.interfaces import Dialect

from console.engines.postgresql import PostgreSQL
from console.engines.product import Timeouts


class OtherPG(PostgreSQL):
    """The engine `otherpg`."""

    name = "otherpg"
    title = "OtherPG"

    @cached_property
    def dialect(self) -> Dialect:
        """PostgreSQL's quoting."""
        dialect = super().dialect
        dialect.name = self.name
        return dialect

    def create_engine(
        self,
        complete_url: Callable[[], URL],
        timeouts: Timeouts,
        application_name: str,
        *,
        pooled: bool = False,
    ) -> Engine:
        """PostgreSQL's driver."""
        engine = super().create_engine(complete_url, timeouts, application_name, pooled=pooled)
        engine.dialect.name = self.name
        return engine


PRODUCT = OtherPG()
