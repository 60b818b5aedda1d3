"""A standby: a server that replays what its primary wrote, and shows the past; or a database that a
subscription makes a copy of another."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING

from console import sql
from console.errors import RefusedError
from console.formats import UNKNOWN, duration, moment

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from console.engines.product import Product

MOST_SECONDS = 60.0
"""Figures of a standby that is further behind say nothing about now."""


@dataclass(frozen=True)
class Standby:
    """The row of `server.standby`."""

    paused: bool
    """Its replay is."""
    receives: bool | None
    """From its primary; None: not known."""
    lag_seconds: float | None
    """The age of the moment that it shows; 0: all that its primary has written. None: not known."""
    upstream: str | None
    """The server that it receives from, as far as the login may read that."""
    now: datetime
    """By its own clock."""
    received: int | None
    """The position in the log up to which it has received, and `replayed`; None: not known."""
    replayed: int | None
    subscription: str | None = None
    """By which the database is a copy of its publisher's; None: it is a server's standby."""

    @property
    def current(self) -> bool:
        """Whether its figures can be taken for those of now."""
        lag = self.lag_seconds
        return not self.paused and self.receives is True and lag is not None and lag <= MOST_SECONDS

    @property
    def ago(self) -> timedelta:
        """How long ago the moment was that it shows."""
        return timedelta(seconds=self.lag_seconds or 0.0)

    @property
    def lag(self) -> str:
        """`caught up`, `5 min behind, replay is paused`."""
        if self.lag_seconds is None:
            words = f"lag {UNKNOWN}"
        else:
            words = f"{duration(self.lag_seconds)} behind" if self.lag_seconds else "caught up"
        words += ", replay is paused" if self.paused else ""
        return words + (", receives nothing from its primary" if self.receives is False else "")

    @property
    def short_lag(self) -> str:
        """The most important part of it; empty if it is caught up."""
        if self.lag_seconds == 0 and self.paused:
            return "paused"
        return "" if self.lag_seconds == 0 else self.lag.partition(",")[0]

    @property
    def name(self) -> str:
        """`standby of db1:5432`."""
        if self.subscription is not None:
            return f"copy by the subscription {self.subscription}"
        return f"standby of {self.upstream}" if self.upstream else "standby"

    @property
    def words(self) -> str:
        return f"{self.name}, {self.lag}"

    def sentence(self, zone: tzinfo | None = UTC) -> str:
        """For what is shown of it: `This is a standby of db1, 5 min behind: as of ...`."""
        as_of = f": this is as of {moment(self.now - self.ago, zone)}" if self.lag_seconds else ""
        return f"This is a {self.words}{as_of}."

    @property
    def no_writes(self) -> str:
        """Why no verb can run here."""
        if self.subscription is not None:
            return f"this database is a {self.name}, and so never written: connect to its publisher"
        where = f": connect to {self.upstream}" if self.upstream else ": connect to its primary"
        return f"this server is a {self.name}, which accepts no writes{where}"

    def refusal(self, doing: str) -> RefusedError:
        """Of whatever writes."""
        if self.subscription is not None:
            name = '"{}"'.format(self.subscription.replace('"', '""'))
            return RefusedError(
                f"Could not {doing}.",
                why=f"This database is a {self.name}: what is popped here is popped there once "
                "more, and a row of its own stops the subscription.",
                next_step="Connect to its publisher. If the copy is to take over: "
                f"ALTER SUBSCRIPTION {name} DISABLE, then dbq-console doctor --fix --code "
                "id_sequence_behind, and doctor for its rings.",
            )
        where = f": {self.upstream}" if self.upstream else ""
        return RefusedError(
            f"Could not {doing}.",
            why=f"This server is a {self.name}: it accepts no writes.",
            next_step=f"Connect to its primary{where}.",
        )

    def as_json(self) -> dict[str, object]:
        known = self.lag_seconds is not None
        return {
            "lag_seconds": self.lag_seconds,
            "paused": self.paused,
            "receives": self.receives,
            "upstream": self.upstream,
            "subscription": self.subscription,
            "as_of": (self.now - self.ago).isoformat() if known else None,
        }


_PAUSES_SECONDS = (0.02, 0.05, 0.1, 0.2)


def read_standby(product: Product, connection: Connection) -> Standby | None:
    """None: the server is a primary.

    What was received in this moment is replayed in the next: that is no lag, although the last
    commit may be long ago.
    """
    if product.reports_primary(connection):
        return None
    first = standby = _read(connection)
    for pause in _PAUSES_SECONDS:
        if first is None or standby is None or first.received is None or standby.replayed is None:
            break
        if not standby.lag_seconds or standby.paused or not standby.receives:
            break
        if standby.replayed >= first.received:
            return replace(standby, lag_seconds=0.0)
        time.sleep(pause)
        standby = _read(connection)
    return standby


def _read(connection: Connection) -> Standby | None:
    return next(iter(sql.rows(connection, Standby, "server.standby")), None)
