"""Actions on messages: their plans and results, and the contents of a queue and its archive."""

from collections import Counter
from dataclasses import replace
from typing import Any

from sqlalchemy import Column, MetaData, Table, select

from console.actions import execute, message_action
from console.actions.archive import Purge
from console.actions.execute import Batching
from console.actions.message_action import MessageAction
from console.actions.restore import Restore
from console.actions.rows import SelectionCriteria
from console.actions.selected import SelectedMessages
from console.catalog import audit
from console.catalog.audit import Ledger
from console.monitor.filters import parse
from console.monitor.message import Message
from console.monitor.scan_query import MessageSource
from console.plan import Result
from tests.contract.client import Client
from tests.contract.filled import read_messages
from tests.contract.variants import ALL, DEFAULTS

SMALL = [variant for variant in DEFAULTS if variant.design.name != "broker"]
WITH_CLAIMS = [v for v in SMALL if v.finishes] + [
    v for v in ALL if v.given == {"size": "300", "in_hand": "on"}
]


def source_of(client: Client) -> MessageSource:
    with client.database.transaction("read the queue", read_only=True) as connection:
        return MessageSource.of(connection, client.queue)


def planned(client: Client, action: MessageAction, *words: str) -> SelectedMessages:
    return message_action.select(client.database, action, parse(words))


def plan_lines(client: Client, action: MessageAction, *words: str) -> str:
    return "\n".join(execute.plan(client.database, action, parse(words)).lines)


def run(client: Client, action: MessageAction, *words: str, batch: int = 3) -> Result:
    """SelectedMessages and execute: as many are done as planned, unless a ring was full."""
    action_plan = planned(client, action, *words)
    done = execute.execute(client.database, action, action_plan, batching=Batching(batch=batch))
    assert done.ledger.balanced
    if done.outcome is audit.Outcome.DONE:
        assert done.ledger.out == action_plan.count
    return done


def entries(client: Client, verb: str | None = None) -> list[audit.Entry]:
    """The queue's audit entries, newest first."""
    with client.database.transaction("read the audit", read_only=True) as connection:
        wanted = audit.EntryFilter(client.queue.schema, client.queue.name, verb)
        return audit.entries(connection, wanted)


def all_messages(client: Client) -> list[Message]:
    """All messages of the queue, with complete payloads, in the order of the list."""
    return list(read_messages(client, limit=1000, payload_bytes=100_000).messages)


def stable_fields(message: Message) -> Message:
    """The message without its age and position."""
    return replace(message, key="", age_seconds=None, slot=None, number=None)


def archive_of(client: Client) -> Table:
    own = ("id", "payload", "state", "pushed_at", "claimed_at", "claimed_by", "error", "done_at")
    names = ("archive_id", *own, "attempts", "action_id", "reason", "archived_at")
    columns: list[Column[Any]] = [Column(name) for name in names]
    return Table(f"{client.queue.name}_archive", MetaData(), *columns, schema=client.queue.schema)


def archived(client: Client) -> list[dict[str, Any]]:
    table = archive_of(client)
    with client.database.transaction("look") as connection:
        rows = connection.execute(select(table).order_by(table.c.archive_id)).mappings().all()
    return [{str(name): value for name, value in row.items()} for row in rows]


def alter_archived(client: Client, archive_id: int, **values: Any) -> None:
    """Change a row of the archive."""
    table = archive_of(client)
    with client.database.transaction("alter") as connection:
        row = table.c.archive_id == archive_id
        assert connection.execute(select(table.c.archive_id).where(row)).scalar_one() == archive_id
        connection.execute(table.update().where(row).values(**values))


def all_payloads(client: Client) -> Counter[object]:
    """Payloads in the queue and in its archive."""
    in_archive = (as_text(row["payload"]) for row in archived(client))
    return Counter(as_text(message.payload) for message in all_messages(client)) + Counter(
        in_archive
    )


def set_titles(client: Client) -> None:
    """Give each message a unique title, where the design has titles."""
    if "status" not in client.queue.roles:
        return
    columns: list[Column[Any]] = [Column("id"), Column("title")]
    table = Table(client.queue.table, MetaData(), *columns, schema=client.queue.schema)
    with client.database.transaction("entitle") as connection:
        for id_ in connection.execute(select(table.c.id)).scalars().all():
            title = {"title": f"title of {id_} 😀"}
            connection.execute(table.update().where(table.c.id == id_).values(**title))


def require_no_incomplete(client: Client) -> None:
    """A split queue has no row in only one of its two tables."""
    if client.queue.design.table_suffix == "":
        return
    found = []
    with client.database.transaction("look") as connection:
        for suffix in ("_meta", "_data"):
            name = client.queue.name + suffix
            table = Table(name, MetaData(), Column("id"), schema=client.queue.schema)
            found.append(sorted(connection.execute(select(table.c.id)).scalars().all()))
    assert found[0] == found[1]


def as_text(payload: object) -> object:
    """JSON arrives as text or parsed."""
    return repr(payload) if isinstance(payload, (list, dict)) else payload


def run_one_batch(client: Client, action: MessageAction, cutoff: Any) -> Ledger:
    """One batch of all matching messages, none skipped by a plan; it is rolled back."""
    with client.database.session("act") as session:
        selection = action.select(
            SelectionCriteria(client.database, session, parse(()), action.states, cutoff)
        )
        chosen = selection.next(1000)
        with session.transaction("act") as connection:
            ledger = action.apply(connection, chosen, 0).require_balance()
            connection.rollback()
    return ledger


def purge(client: Client, *words: str, **options: Any) -> Result:
    return run(client, Purge(source_of(client), **options), *words)


def restore(client: Client, *words: str, **options: Any) -> Result:
    return run(client, Restore(source_of(client), **options), *words)


def plan_restore(client: Client, *words: str, **options: Any) -> SelectedMessages:
    return planned(client, Restore(source_of(client), **options), *words)
