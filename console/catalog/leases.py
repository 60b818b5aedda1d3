"""Which one of several processes does what only one may: it holds a lease in the database.

A lease is a row that ends by the database's clock unless its holder renews it. It holds behind a
pooler too, where a session's lock would be void.
"""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING

from console import catalog, clock
from console.catalog import audit

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from sqlalchemy import Connection

    from console.engines import Database


class Lease:
    """One that this process holds, or would like to. Its transactions raise ConsoleError."""

    def __init__(
        self,
        database: Database,
        name: str,
        seconds: float,
        *,
        purpose: str,
        me: str = "",
        prepare: Callable[[Connection], object] | None = None,
    ) -> None:
        """`purpose`: for errors. `me`: an own name for this holder. `prepare` the catalog, once, in
        the first transaction that takes it."""
        self.me = me or f"{audit.operator()} pid {os.getpid()} {secrets.token_hex(4)}"
        self.holder = ""
        """Who had it at the last call of `hold`; empty: not known, or given back."""
        self.until: datetime | None = None
        """Until when, by the database's clock."""
        self.database = database
        self.name = name
        self.seconds = seconds
        self._purpose = purpose
        self._prepare = prepare
        self._held_until = 0.0

    @property
    def is_ours(self) -> bool:
        return self.holder == self.me

    @property
    def left_seconds(self) -> float:
        """How long it still is this process's, by its own clock."""
        return self._held_until - clock.elapsed() if self.is_ours else 0.0

    def hold(self, gone: str = "") -> bool:
        """Take or renew it; whether it is ours. It can be taken from `gone`, a holder that is known
        to have ended."""
        sent_at = clock.elapsed()
        with self.database.transaction(f"take the lease for {self._purpose}") as connection:
            if self._prepare is not None:
                self._prepare(connection)
            taken = catalog.take_lease(connection, self.name, self.me, self.seconds, gone=gone)
        self._prepare = None
        self.holder, self.until = taken.holder, taken.until
        # From before the query, so that it never ends later here than on the server.
        self._held_until = sent_at + self.seconds
        return self.is_ours

    def give_back(self) -> None:
        """Let another process take over at once."""
        if self.is_ours:
            self.holder = ""
            with self.database.transaction("give the lease back") as connection:
                catalog.end_lease(connection, self.name, self.me)
