"""Peers that are packages for Python: each in a schema of its own, that goes whole."""

import importlib
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from console import sql
from console.bench.contestant import Contestant, Scratch
from console.bench.names import PREFIX, load_name
from console.bench.peers.scratch import ScratchPeer
from console.bench.peers.shared import url_in_schema
from console.bench.schemas import schema_of_its_own
from console.designs import Order
from console.engines import Database


@dataclass(frozen=True)
class Library:
    """One of them. Its module here has `install`, and `run` for the worker processes."""

    name: str
    needs: tuple[str, ...]
    """What has to be there to import."""
    order: Order
    """That its documentation promises."""
    tables: tuple[str, ...]
    """Those that its calls write."""

    @property
    def _module(self) -> str:
        return f"{__package__}.{self.name}"

    def lacking(self, database: Database) -> str:
        """Why it cannot take part; empty where it can."""
        if database.product.name != "postgresql":
            return "It is for PostgreSQL."
        if not all(importlib.util.find_spec(package) for package in self.needs):
            return "It is not installed. Install it: pip install 'dbq-console[bench]'"
        return ""

    def contestant(self, batch: int) -> Contestant:
        """As one that takes part."""
        driver = f"{self._module}:run"
        return Contestant(self.name, self.name, batch, driver, order=self.order, peer=True)

    @contextmanager
    def scratch(self, database: Database, token: str, batch: int) -> Iterator[Scratch]:  # noqa: ARG002
        """Its tables, for one round."""
        schema = f"{PREFIX}{token}_{self.name}"
        with schema_of_its_own(database, schema):
            # Imported here: it is there only with the extra, and takes a moment.
            peer = importlib.import_module(self._module)
            peer.install(url_in_schema(database.complete_url(), schema), load_name(token))
            yield ScratchPeer(
                database,
                f"held_{self.name}",
                sql.Scope({"schema": schema}),
                schema,
                self.tables,
                {"schema": schema},
            )


PROCRASTINATE = Library(
    "procrastinate",
    ("procrastinate",),
    Order.LAX,
    ("procrastinate_jobs", "procrastinate_events"),
)
PGQUEUER = Library("pgqueuer", ("pgqueuer", "asyncpg"), Order.NONE, ("pgqueuer", "pgqueuer_log"))
