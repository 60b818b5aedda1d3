"""Statements as the console composes them: scans of messages, actions, the pipeline's."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from console import sql
from console.actions.rows import Storage, scope
from console.catalog import Kind, Queue
from console.designs import DESIGNS, Flow, Order, presets
from console.engines import Product
from console.features.presets.discovery import LibraryTable, queue_of
from console.monitor.filters import MOST_PAYLOAD_FILTERS, NOTHING, Filters, parse
from console.monitor.scan_query import (
    LOCK_NEXT,
    KeyType,
    MessageSource,
    locks_next,
    query,
    scope_of,
)
from console.monitor.scans import (
    EVERYTHING,
    By,
    Grouping,
    Scan,
    ScanKey,
    ScanRequest,
    scans_by_id,
    scans_of,
)
from console.sql import templates

BIND = re.compile(r"(?<![:\w\\]):(\w+)")
MORE = {
    "kind": "installed",
    "options_json": "{}",
    "roles_json": "{}",
    "version": "1",
    "installed_from": "me@here",
    "pushes": "no",
    "default": "DEFAULT 0",
    **dict.fromkeys(("relation", "index", "session", "function", "role", "member"), "name"),
    **dict.fromkeys(("constraint", "column", "second"), "name"),
    **dict.fromkeys(("relation_schema", "id_column", "database", "secret"), "name"),
    **dict.fromkeys(("sequence_schema", "sequence", "sequence_owner"), "name"),
    **dict.fromkeys(("rows", "width", "reach", "most"), "10"),
    **dict.fromkeys(("since", "before"), "-infinity"),
}
"""Values that only the statements of the catalog, maintenance, sequences and copies use."""
_TIME = "2026-11-21T19:07:45.123456"
_CUTOFF = datetime(2026, 11, 21, 19, 8, tzinfo=UTC)
_ROW_FILTERS = ("older=1h", "newer=2h", "error~no", "claimed_by=w")
_PAYLOAD_FILTERS = ('payload.a[0]."b.c"=x', "payload.d=1")


def scan_requests(source: MessageSource) -> Iterator[ScanRequest]:
    """Every scan: from its start, after a key, at a key; forwards and backwards; with filters."""
    scans = scans_of(source.queue)
    by_id = scans_by_id(source.queue)
    for scan in dict.fromkeys((*scans, *by_id)):
        key = ScanKey(scan.name, _TIME if scan.by is By.TIME else "", "1", scan.dated)
        for reverse in (False, True):
            for after, exactly in ((None, False), (key, False), (key, True)):
                for filters in (NOTHING, _filters(source, scan)):
                    yield ScanRequest(
                        scan,
                        read_limit=10,
                        n=5,
                        after=after,
                        exactly=exactly,
                        reverse=reverse,
                        filters=filters,
                        moment=_CUTOFF if filters.narrowing and reverse else None,
                        payload_length=7 if filters.narrowing and source.payload else None,
                        chunk=(0, 5) if scan.chunks else None,
                        slots=10,
                    )
        forwards = ScanRequest(scan, read_limit=10, n=5, after=key, reverse=scan.newest_first)
        if source.rereads_times(forwards):
            yield replace(forwards, filters=Filters(state=scan.state), same_time=True)
    if any(scan.by is By.LOCATION for scan in scans):
        yield ScanRequest(scans[0], read_limit=10, n=5)


def _filters(source: MessageSource, scan: Scan) -> Filters:
    by_id = () if scan.by is By.ID else ("id=3",)
    by_payload = _PAYLOAD_FILTERS if source.payload == "json" else ()
    return replace(parse([*_ROW_FILTERS, *by_id, *by_payload]), error_group=f"1-{'a' * 16}")


def message_queries(product: Product, queue: Queue) -> dict[str, str]:
    """Scan -> SQL without bind parameters; only the first has the statement's later parts.

    These are the same for all.
    """
    found: dict[str, str] = {}
    for source in sources(product, queue):
        for request in scan_requests(source):
            if request.filters.narrowing and request.after is not None and not request.exactly:
                sql_text = query(source, request, "matching").text.replace("\\:", ":")
                # Removed comments leave trailing blanks.
                text = re.sub(r"[ ]+$", "", BIND.sub("1", sql_text), flags=re.MULTILINE)
                if found:
                    text = (
                        text.partition(", chunk AS (")[0] + " SELECT w.id AS id FROM scanned AS w"
                    )
                found.setdefault(f"{request.scan.name} by {request.scan.by.value}", text)
    return found


def sources(product: Product, queue: Queue) -> Iterator[MessageSource]:
    """The queue's messages; for an adopted one, with every type that its payload may have."""
    ours = queue.options.get("payload")
    kinds = [ours] if ours else ["text", "json", "bytes"]
    if queue.design.library:
        kinds = ["bytes" if queue.design.name == "pgqueuer" else "json"]
    if queue.kind is Kind.ADOPTED and "payload" not in queue.roles:
        kinds = [""]
    yield from (MessageSource(product, queue, kind, "bigint") for kind in kinds)
    if queue.kind is Kind.ADOPTED and sql.has(product, "catalog.key_type"):
        citext = KeyType("ext", "citext", "ext")
        yield MessageSource(product, queue, kinds[0], "ext.citext", key_type=citext)
    if queue.kind is Kind.ADOPTED and product.narrow_types:
        yield MessageSource(product, queue, kinds[0], "varchar(50)", narrow=True)


def adopted(product: Product) -> Iterator[Queue]:
    """An adopted table of each design: with all roles, and with only the required ones."""
    for of in DESIGNS.values():
        if product.name in of.engines:
            for roles in (of.roles, of.needed_roles):
                size = {"size": "10"} if "slot" in of.needed_roles else {}
                columns = {role: f"the {role}" for role in roles}
                yield Queue("s", "t", of, {}, columns | size, kind=Kind.ADOPTED)
    yield from library_queues(product)


def library_queues(product: Product) -> Iterator[Queue]:
    """Each library's table: one queue of it, and the whole table with only the required roles."""
    for of in presets(product.name).values():
        table = LibraryTable("s", "their table", "beside it", None)
        needed = {role: column for role, column in of.roles.items() if role in of.needed_roles}
        yield queue_of(of, table, "t", "its's")
        yield replace(queue_of(of, table, "t", ""), roles=needed)


def texts(product: Product, queue: Queue, *, everything: bool = True) -> Iterator[tuple[str, str]]:
    """(description, SQL with bind parameters as `:name`) of every query of a queue's messages.

    Or of half of them, which still has every pair of direction, start and filters.
    """
    for source in sources(product, queue):
        chooses = [LOCK_NEXT] if locks_next(product) else ["chosen"]
        if queue.kind is Kind.ADOPTED and locks_next(product):
            chooses = []
        for request in scan_requests(source):
            starts = (request.after is not None) + request.exactly
            if not everything and (starts + request.reverse + request.filters.narrowing) % 2:
                continue
            for last in ("matching", *_other_results(request, chooses)):
                where = (
                    f"{queue.design.name} {dict(queue.options)} {source.payload} {request} {last}"
                )
                wanted = for_statement(request, queue, last)
                yield where, query(source, wanted, last).text.replace("\\:", ":")


def for_statement(request: ScanRequest, queue: Queue, last: str) -> ScanRequest:
    """As verbs count or choose such messages: those that leave some alone, those with a limit."""
    if last not in {"counted", "chosen", LOCK_NEXT}:
        return request
    grouping = Grouping.BY_CLAIMANT if request.scan.state == "claimed" else Grouping.NO
    if queue.design.order is Order.DUE:
        grouping = Grouping.BY_DUE
    bounded = request.filters.narrowing == (last != "counted")
    n = request.n if bounded else EVERYTHING
    return replace(request, grouping=grouping, sizes=last == "counted", n=n)


def _other_results(request: ScanRequest, chooses: Sequence[str]) -> list[str]:
    """The other results that scans of some states are used for; those that choose."""
    others = ["error_texts"] if request.scan.state == "error" else []
    others += ["retried"] if request.scan.state in {"ready", "claimed", "error"} else []
    for_plans = request.payload_length is None and not request.exactly
    return others + (["counted", *chooses] if for_plans else [])


# -- actions on messages

CONDITIONS: dict[str, tuple[str, ...]] = {
    "storage": ("table", "slots", "in_hand"),
    "ids": ("kept", "new"),
    "rows": ("kept", "popped", "pushed"),
    "target_payload": ("text", "json", "bytes"),
    **dict.fromkeys(("titles", "to_back", "lock", "lakes", "next", "until"), ("yes", "no")),
    **dict.fromkeys(("popped", "by_state", "by_action", "by_reason"), ("yes", "no")),
}
"""What the statements of actions.sql test in `-- when`, besides those of a scan."""
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


def action_statements(product: Product, queue: Queue) -> Iterator[tuple[sql.Statement, sql.Scope]]:
    """Each statement with each scope that a verb gives it for this queue."""
    for source in sources(product, queue):
        for name, within in _scopes(source):
            yield sql.statement(product.name, f"{queue.design.name}.{name}"), within
    for name in ("server_time", "live_sessions", "unpack_chosen"):
        yield sql.statement(product.name, f"actions.{name}"), sql.Scope()


def _scopes(source: MessageSource) -> Iterator[tuple[str, sql.Scope]]:
    queue = source.queue
    installed = queue.kind is Kind.INSTALLED
    # Without the role no statement can find a message again.
    for storage in storages(queue) if "id" in queue.roles else ():
        for lock, hashed in (("yes", "no"), ("yes", "yes"), ("no", "no")):
            yield "lock_rows", scope(source, storage, lock=lock, hashed=hashed)
        locks_chosen = sql.has(source.product, "actions.lock_chosen")
        if installed and locks_chosen and not queue.design.waits_itself:
            yield "lock_chosen", scope(source, storage, lock="yes")
        yield "delete_rows", scope(source, storage)
        if not installed:
            yield "cascades", scope(source, storage)
            yield "delete_triggers", scope(source, storage)
        if "due_at" in queue.roles and not queue.design.library:
            yield "due_before", scope(source, storage)
            yield "reschedule", scope(source, storage)
        if installed:
            yield "archive_rows", scope(source, storage)
        if storage is Storage.IN_HAND or queue.design.keeps_row:
            back = "pushed_at" in queue.roles and storage is Storage.TABLE
            for to_back in ("no", "yes") if back else ("no",):
                yield "make_ready", scope(source, storage, to_back=to_back)
            yield from _target_statements(source, storage)
    if installed:
        yield from _archive_statements(source)


def _target_statements(source: MessageSource, storage: Storage) -> Iterator[tuple[str, sql.Scope]]:
    titled = source.queue.kind is Kind.INSTALLED and "status" in source.queue.roles
    for target in _TARGETS.get(source.payload, ()):
        for titles in ("no", "yes") if titled else ("no",):
            plain = scope(source, storage, target_payload=target, titles=titles)
            within = replace(plain, values={**plain.values, **_TARGET})
            yield "oversized", within
            yield "push_to", within


def _archive_statements(source: MessageSource) -> Iterator[tuple[str, sql.Scope]]:
    queue = source.queue
    in_hand = queue.options.get("in_hand") == "on"
    kept = queue.design.keeps_row or in_hand
    storage = Storage.IN_HAND if in_hand else Storage.TABLE
    rows = "kept" if queue.design.keeps_row else "popped" if in_hand else "pushed"
    for lakes in ("no", "yes"):
        for name in ("lock_archived", "labelled_archived"):
            yield name, scope(source, storage, rows=rows, lakes=lakes)
    yield "lock_lake_plan", scope(source, Storage.TABLE)
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
        request = ScanRequest(
            Scan("archive", By.ID),
            after=ScanKey("archive", id="5"),
            filters=parse([*_NARROW, *payload]) if narrow == "yes" else NOTHING,
            moment=_CUTOFF,
        )
        flags = dict.fromkeys(("by_state", "by_action", "by_reason", "popped"), narrow)
        plain, restoring = (
            scope_of(source, request),
            scope(source, storage, rows=rows, lakes=narrow),
        )
        options = {**plain.options, **restoring.options, **flags}
        within = sql.Scope({**plain.values, **restoring.values}, options, plain.roles)
        for name in ("matching_archived", "counted_archived", "chosen_archived"):
            yield name, within


# -- the pipeline

_VALUES = {"plan_id": "1", "after": "0", "last": "9"}


def pipeline_statements(
    product: Product, queue: Queue
) -> Iterator[tuple[sql.Statement, sql.Scope]]:
    """Every statement of `pipeline.sql`, in every form for this queue."""
    conditions = {"plan": ("lock", ("yes", "no")), "rows": ("others", ("yes", "no"))}
    for name, statement in templates.statements(product.name, "pipeline").items():
        within = queue.scope(product, **_VALUES)
        condition, values = conditions.get(name, ("", ("",)))
        for value in values:
            options = {**within.options, condition: value} if condition else within.options
            yield statement, sql.Scope(within.values, options, within.roles)


CONDITIONS_OF_SCANS: dict[str, tuple[str, ...]] = {
    "scan": (
        *("ready", "scheduled", "claimed", "error", "done"),
        *("any", "in_hand", "parked", "numbers"),
    ),
    "sorted": (
        *("no", "id_up", "id_down"),
        *("time_up", "time_down", "undated_up", "undated_down"),
    ),
    "start": ("beginning", "after", "exactly", "same_time"),
    "by_age": ("scan", "row"),
    **dict.fromkeys(("body", "with_payload"), ("yes", "no")),
    **dict.fromkeys(("by_cutoff", "by_older", "by_newer", "by_id", "by_error"), ("yes", "no")),
    **dict.fromkeys(("hashed", "bounded", "located"), ("yes", "no")),
    "grouped": tuple(grouping.value for grouping in Grouping if grouping is not Grouping.BY_LABEL),
    **dict.fromkeys(("own_operators", "narrow"), ("yes", "no")),
    **dict.fromkeys(("by_claimed_by", "by_payload"), ("yes", "no")),
    **dict.fromkeys((f"by_payload_{n + 1}" for n in range(MOST_PAYLOAD_FILTERS)), ("yes", "no")),
}
"""The `-- when` conditions of statements over a scan, besides a queue's options."""
