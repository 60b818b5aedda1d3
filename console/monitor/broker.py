"""What Service Broker tells of a queue as a whole, besides its messages."""

from dataclasses import dataclass

from sqlalchemy import Connection

from console import sql
from console.catalog import Queue
from console.engines import Product
from console.monitor.figures import COUNTED

_MANY_CONVERSATIONS = 1_000
"""More open ones than this are leaking: one a session, or one a message on its way, is normal."""


@dataclass(frozen=True)
class BrokerHealth:
    """Counts are of at most 10,001."""

    is_receive_enabled: bool
    is_enqueue_enabled: bool
    broker_enabled: bool
    conversations: int
    transmission: int
    transmission_status: str | None

    def problem(self, ready: int | None) -> str:
        """What is wrong with the queue and what to do, or nothing."""
        if not self.broker_enabled:
            return (
                "Service Broker is off in this database: nothing is delivered. "
                "Switch it on with ALTER DATABASE CURRENT SET ENABLE_BROKER."
            )
        if not self.is_receive_enabled:
            return (
                "The queue is switched off: five pops of a message were rolled back in a row "
                "(a poison message), or somebody did it. Nothing can be popped until "
                "ALTER QUEUE ... WITH STATUS = ON."
            )
        if not self.is_enqueue_enabled:
            return "The queue takes no messages: ALTER QUEUE ... WITH STATUS = ON."
        if self.transmission:
            why = f": {self.transmission_status}" if self.transmission_status else ""
            return f"{_counted(self.transmission)} messages cannot be delivered{why}"
        # A message on its way may have a conversation of its own; those are no leak.
        if self.conversations > _MANY_CONVERSATIONS + 2 * (ready or 0):
            return (
                f"{_counted(self.conversations)} conversations are open: "
                "somebody begins them and does not end them."
            )
        return ""


def _counted(count: int) -> str:
    return f"More than {COUNTED:,}" if count > COUNTED else f"{count:,}"


def health(connection: Connection, product: Product, queue: Queue) -> BrokerHealth:
    """Look at the queue's switches and conversations."""
    statement = sql.statements(product.name, queue.design.name)["health"]
    (row,) = sql.fetch(connection, BrokerHealth, statement, queue.scope(product))
    return row
