"""Every statement that looks at messages, as it is put together for one ask."""

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime

from console.actions.libraries import LibraryTable, queue_of
from console.catalog import Kind, Queue
from console.designs import DESIGNS, presets
from console.engines import Product
from console.monitor.filters import NOTHING, Filters, parse
from console.monitor.scan_query import MessageSource, query
from console.monitor.scans import By, Scan, ScanKey, ScanRequest, scans_by_id, scans_of

BIND = re.compile(r"(?<![:\w\\]):(\w+)")
_TIME = "2026-11-21T19:07:45.123456"
_CUTOFF = datetime(2026, 11, 21, 19, 8, tzinfo=UTC)
_ROW_FILTERS = ("older=1h", "newer=2h", "error~no", "claimed_by=w")
_PAYLOAD_FILTERS = ('payload.a[0]."b.c"=x', "payload.d=1")


def asks(source: MessageSource) -> Iterator[ScanRequest]:
    """Every walk: from its beginning, from a key on and at one; forwards and back; with filters."""
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
    if any(scan.by is By.LOCATION for scan in scans):
        yield ScanRequest(scans[0], read_limit=10, n=5)


def _filters(source: MessageSource, scan: Scan) -> Filters:
    by_id = () if scan.by is By.ID else ("id=3",)
    by_payload = _PAYLOAD_FILTERS if source.payload == "json" else ()
    return replace(parse([*_ROW_FILTERS, *by_id, *by_payload]), error_group=f"1-{'a' * 16}")


def samples(product: Product, queue: Queue) -> dict[str, str]:
    """What is asked -> SQL without binds: the first walk with all that can be asked, others bare.

    What follows the walk itself is the same for all.
    """
    found: dict[str, str] = {}
    for source in sources(product, queue):
        for ask in asks(source):
            if ask.filters.narrowing and ask.after is not None and not ask.exactly:
                asked = query(source, ask, "matching").text.replace("\\:", ":")
                # Comments are gone, and have left blanks.
                text = re.sub(r"[ ]+$", "", BIND.sub("1", asked), flags=re.MULTILINE)
                if found:
                    text = (
                        text.partition(", chunk AS (")[0] + " SELECT w.id AS id FROM scanned AS w"
                    )
                found.setdefault(f"{ask.scan.name} by {ask.scan.by.value}", text)
    return found


def sources(product: Product, queue: Queue) -> Iterator[MessageSource]:
    """The queue; one that was adopted, with every type that its payload may have."""
    ours = queue.options.get("payload")
    kinds = [ours] if ours else ["text", "json", "bytes"]
    if queue.design.library:
        kinds = ["bytes" if queue.design.name == "pgqueuer" else "json"]
    if queue.kind is Kind.ADOPTED and "payload" not in queue.roles:
        kinds = [""]
    return (MessageSource(product, queue, kind, "bigint") for kind in kinds)


def adopted(product: Product) -> Iterator[Queue]:
    """Somebody else's table of each design: with all roles, and with those that are needed."""
    for of in DESIGNS.values():
        if product.name in of.engines:
            for roles in (of.roles, of.needed_roles):
                size = {"size": "10"} if "slot" in of.needed_roles else {}
                columns = {role: f"the {role}" for role in roles}
                yield Queue("s", "t", of, {}, columns | size, kind=Kind.ADOPTED)
    yield from of_libraries(product)


def of_libraries(product: Product) -> Iterator[Queue]:
    """What each library keeps: one queue of it, and all of it as its oldest version tells it."""
    for of in presets(product.name).values():
        table = LibraryTable("s", "their table", "beside it", None)
        needed = {role: column for role, column in of.roles.items() if role in of.needed_roles}
        yield queue_of(of, table, "t", "its's")
        yield replace(queue_of(of, table, "t", ""), roles=needed)


def texts(product: Product, queue: Queue, *, everything: bool = True) -> Iterator[tuple[str, str]]:
    """(what is asked, SQL with `:name` for what is bound) of everything asked of one queue.

    Or of half of it, in which any two of direction, beginning and filters still meet.
    """
    for source in sources(product, queue):
        for ask in asks(source):
            begins = (ask.after is not None) + ask.exactly
            if not everything and (begins + ask.reverse + ask.filters.narrowing) % 2:
                continue
            for last in ("matching", *_others(ask)):
                where = f"{queue.design.name} {dict(queue.options)} {source.payload} {ask} {last}"
                yield where, query(source, ask, last).text.replace("\\:", ":")


def _others(ask: ScanRequest) -> list[str]:
    """What else is asked of the walks of some states."""
    of_errors = ["error_texts"] if ask.scan.state == "error" else []
    return of_errors + (["retried"] if ask.scan.state in {"ready", "claimed", "error"} else [])
