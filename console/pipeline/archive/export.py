"""One range into the lake: read under the predicate, written a file a day, told in its manifest."""

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any
from uuid import uuid4

import pyarrow as pa

from console import sql
from console.catalog import Queue
from console.engines import Product
from console.errors import RefusedError
from console.pipeline import guard, rows
from console.pipeline.archive.files import Writer
from console.pipeline.archive.plan import Plan, Range, scope
from console.pipeline.archive.reading import Reader, reader
from console.pipeline.arrow import pc
from console.pipeline.lake import Lake
from console.pipeline.session import Item


def items(  # noqa: PLR0913  # what a task needs comes from everywhere
    product: Product,
    queue: Queue,
    url: str,
    lake: Lake,
    plan: Plan,
    ranges: list[Range],
    *,
    work: str,
    action_id: int,
    clean: bool,
) -> list[Item]:
    """A task a range: all that it needs, in plain words."""
    return [
        {
            "engine": product.name,
            "url": url,
            "lake": lake.place,
            "plan": {**plan.as_json(), "ranges": []},
            "range": part.as_json(),
            "hold": guard.lock_text(product, work, "shared"),
            "hold_range": guard.lock_text(product, f"{work} {part.number}", "exclusive"),
            "action": guard.action_text(product, action_id),
            "rows": _rows_text(product, queue, plan, part),
            "clean": clean,
        }
        for part in ranges
    ]


def _rows_text(product: Product, queue: Queue, plan: Plan, part: Range) -> str:
    keys = {"after": str(part.after), "last": str(part.last)}
    within = scope(product, queue, part.source, **plan.values(part.source), **keys)
    statement = guard.statement(product, "rows")
    return f"/* dbq {statement.label} */ {sql.script(statement, product.dialect, within)}"


def export(item: Item) -> dict[str, Any]:
    """The task. What it returns is the range's manifest."""
    lake = Lake(item["lake"])
    told = {key: value for key, value in item["plan"].items() if key not in {"format", "version"}}
    plan, part = Plan(**told), Range(**item["range"])
    with reader(item["engine"], item["url"]) as source:
        _require_run(source, item)
        if item["clean"]:
            remove_files(lake, plan, part.number)
        return _Export(lake, plan, part).run(source, item)


def _require_run(source: Reader, item: Item) -> None:
    """RefusedError where the run that this task belongs to is over, or works on the range twice."""
    for lock in ("hold", "hold_range"):
        got = source.one(item[lock])
        if got is None or not got[0]:
            raise _over()
    _require_action(source, item)


def _require_action(source: Reader, item: Item) -> None:
    found = source.one(item["action"])
    if found is None or found[1]:
        raise _over()


def _over() -> RefusedError:
    return RefusedError(
        "A task of the pipeline came too late.",
        why="Its run has ended, or another one does its work.",
        next_step="Nothing was changed by it. Run the same command again: it goes on.",
    )


def remove_files(lake: Lake, plan: Plan, number: int) -> None:
    """What an attempt that has no manifest left."""
    stem = plan.stem(number)
    for path in lake.files(plan.folder):
        name = path.rsplit("/", 1)[-1]
        if name.startswith((f"{stem}.", f"_tmp-{stem}-")):
            lake.remove(path)


class _Export:
    """A range while it is written. The files come to be together, at the end."""

    def __init__(self, lake: Lake, plan: Plan, part: Range) -> None:
        self._lake = lake
        self._plan = plan
        self._part = part
        self._writers: dict[str, Writer] = {}

    def run(self, source: Reader, item: Item) -> dict[str, Any]:
        """All of it; the manifest, which is in the lake then."""
        kind = self._plan.payload_kind
        with ExitStack() as files:
            with ExitStack() as writers:
                for read in source.batches(item["rows"]):
                    for date, batch in by_date(rows.conform(read, kind)):
                        self._writer(date, files, writers).write(batch)
            # The session has held its lock until here: no successor has begun.
            _require_action(source, item)
        manifest = self._manifest()
        self._lake.write_json(self._plan.range_path(self._part.number), manifest)
        return manifest

    def _writer(self, date: str, files: ExitStack, writers: ExitStack) -> Writer:
        if date not in self._writers:
            number = self._part.number
            file = files.enter_context(
                self._lake.writing(
                    self._plan.data_path(date, number),
                    temporary=f"_tmp-{self._plan.stem(number)}-{uuid4().hex}",
                )
            )
            writer = Writer(file, self._plan.payload_kind)
            self._writers[date] = writers.enter_context(writer)
        return self._writers[date]

    def _manifest(self) -> dict[str, Any]:
        files = []
        for date, writer in sorted(self._writers.items()):
            path = self._plan.data_path(date, self._part.number)
            files.append({"path": path, "size": self._lake.size(path), **writer.sum.as_json()})
        return range_manifest(self._plan, self._part, files)


def range_manifest(plan: Plan, part: Range, files: list[dict[str, Any]]) -> dict[str, Any]:
    """What a range's manifest says: of each file, and of all of them."""
    sums = sum((rows.Sum.of_json(file) for file in files), rows.Sum())
    return {
        "plan": plan.id,
        "range": part.number,
        "source": part.source,
        "payload_kind": plan.payload_kind,
        **sums.as_json(),
        "size": sum(file["size"] for file in files),
        "files": files,
    }


def by_date(batch: pa.RecordBatch) -> list[tuple[str, pa.RecordBatch]]:
    """The rows of each day; mostly a batch is of one."""
    days = rows.dates(batch)
    found = pc.unique(days).to_pylist()
    if len(found) == 1:
        return [(str(found[0]), batch)]
    return [(str(day), batch.filter(pc.equal(days, pa.scalar(day, days.type)))) for day in found]


def sums_of(manifest: Mapping[str, Any]) -> rows.Sum:
    """What a manifest says there is."""
    return rows.Sum.of_json(manifest)
