"""Every statement that acts on messages, with the scopes that verbs give it."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime

from console import sql
from console.actions.rows import Storage, scope
from console.catalog import Kind, Queue
from console.designs import Flow
from console.engines import Product
from console.monitor.filters import NOTHING, parse
from console.monitor.scan_query import MessageSource, scope_of
from console.monitor.scans import By, Scan, ScanKey, ScanRequest
from tests.sample_statements import sources

CONDITIONS: dict[str, tuple[str, ...]] = {
    "storage": ("table", "slots", "in_hand"),
    "ids": ("kept", "new"),
    "rows": ("kept", "pushed"),
    "target_payload": ("text", "json", "bytes"),
    **dict.fromkeys(("titles", "to_back", "lock"), ("yes", "no")),
    **dict.fromkeys(("popped", "by_state", "by_action", "by_reason"), ("yes", "no")),
}
"""What the statements of actions.sql test in `-- when`, besides those of a scan."""
_CUTOFF = datetime(2026, 11, 21, 19, 8, tzinfo=UTC)
_NARROW = ("older=1h", "newer=2h", "error~no", "claimed_by=w", "id=3")
_NARROW_PAYLOAD = ('payload.a[0]."b.c"=x', "payload.d=1")
_TARGETS = {"text": ("text", "json"), "json": ("json", "text"), "bytes": ("bytes",)}
_TARGET = {
    **dict.fromkeys(("target_schema", "target"), "other"),
    "target_payload_type": "text",
    "target_max_bytes": "5",
}


def storages(queue: Queue) -> Iterator[Storage]:
    """The storages of messages that a verb may act on."""
    if queue.design.flow is not Flow.NUMBERS:
        yield Storage.TABLE
    elif queue.kind is Kind.INSTALLED:
        yield Storage.SLOTS
        if queue.options["in_hand"] == "on":
            yield Storage.IN_HAND


def moves(product: Product, queue: Queue) -> Iterator[tuple[sql.Statement, sql.Scope]]:
    """Each statement with each scope that a verb gives it for this queue."""
    for source in sources(product, queue):
        for name, within in _scopes(source):
            yield sql.statement(product.name, f"{queue.design.name}.{name}"), within
    for name in ("server_time", "live_sessions"):
        yield sql.statement(product.name, f"actions.{name}"), sql.Scope()


def _scopes(source: MessageSource) -> Iterator[tuple[str, sql.Scope]]:
    queue = source.queue
    installed = queue.kind is Kind.INSTALLED
    # Without the role nothing finds a message again.
    for storage in storages(queue) if "id" in queue.roles else ():
        for lock, hashed in (("yes", "no"), ("yes", "yes"), ("no", "no")):
            yield "lock_rows", scope(source, storage, lock=lock, hashed=hashed)
        yield "delete_rows", scope(source, storage)
        if "due_at" in queue.roles and not queue.design.library:
            yield "due_before", scope(source, storage)
            yield "reschedule", scope(source, storage)
        if installed:
            yield "archive_rows", scope(source, storage)
        if storage is Storage.IN_HAND or queue.design.keeps_row:
            back = "pushed_at" in queue.roles and storage is Storage.TABLE
            for to_back in ("no", "yes") if back else ("no",):
                yield "make_ready", scope(source, storage, to_back=to_back)
            yield from _to_another(source, storage)
    if installed:
        yield from _of_the_archive(source)


def _to_another(source: MessageSource, storage: Storage) -> Iterator[tuple[str, sql.Scope]]:
    titled = source.queue.kind is Kind.INSTALLED and "status" in source.queue.roles
    for target in _TARGETS.get(source.payload, ()):
        for titles in ("no", "yes") if titled else ("no",):
            plain = scope(source, storage, target_payload=target, titles=titles)
            within = replace(plain, values={**plain.values, **_TARGET})
            yield "oversized", within
            yield "push_to", within


def _of_the_archive(source: MessageSource) -> Iterator[tuple[str, sql.Scope]]:
    queue = source.queue
    in_hand = queue.options.get("in_hand") == "on"
    kept = queue.design.keeps_row or in_hand
    storage = Storage.IN_HAND if in_hand else Storage.TABLE
    for lock in ("no", "yes"):
        rows = "kept" if kept else "pushed"
        yield "lock_archived", scope(source, storage, lock=lock, rows=rows)
    if kept:
        for ids in ("kept", "new"):
            yield "restore_rows", scope(source, storage, ids=ids)
    if not queue.design.keeps_row:
        yield "restore_by_push", scope(source, storage)
    for name in ("target_state", "archive_end", "archived_after"):
        yield name, scope(source, Storage.TABLE)
    yield "last_purge", queue.scope(source.product)
    payload = _NARROW_PAYLOAD if source.payload == "json" else ()
    for narrow in ("no", "yes"):
        ask = ScanRequest(
            Scan("archive", By.ID),
            after=ScanKey("archive", id="5"),
            filters=parse([*_NARROW, *payload]) if narrow == "yes" else NOTHING,
            moment=_CUTOFF,
        )
        told = dict.fromkeys(("by_state", "by_action", "by_reason", "popped"), narrow)
        plain = scope_of(source, ask)
        yield "matching_archived", replace(plain, options={**plain.options, **told})
