"""What measures call for, mostly SQL Server's, and why; without a server."""

from types import SimpleNamespace
from typing import Any

import pytest

from console.actions.maintenance import (
    IndexMeasure,
    MaintainLimits,
    Maintenance,
    Measures,
    TableMeasure,
    needed,
)
from console.catalog import Queue, installed_queue
from console.designs import DESIGNS
from console.engines import PRODUCTS
from console.monitor.waits import HorizonRow

TABLE = TableMeasure(1, "orders", 5_000, 100_000, 0, 0, None, 60.0, None)
INDEX = IndexMeasure(2, "orders_key", "orders", 5_000, True, False, False, True, None, None, None)


def queue_of(design: str) -> Queue:
    found_design = DESIGNS[design]
    return installed_queue(
        "dbo", "orders", found_design, found_design.complete_options({}, "mssql")
    )


def changed(measure: Any, **values: Any) -> Any:
    return type(measure)(**{**vars(measure), **values})


def plan_of(*measures: Any, design: str = "fifo", online: bool = True) -> Maintenance:
    missing = {} if online else {"online_rebuild": "Express"}
    database: Any = SimpleNamespace(
        product=PRODUCTS["mssql"], capabilities=SimpleNamespace(missing=missing)
    )
    tables = tuple(m for m in measures if isinstance(m, TableMeasure)) or (TABLE,)
    indexes = tuple(m for m in measures if isinstance(m, IndexMeasure))
    return needed(database, queue_of(design), Measures(tables, indexes, ()), MaintainLimits())


@pytest.mark.parametrize(("behind", "holds"), [(10_000, True), (9_999, False), (None, False)])
def test_a_replication_slot_far_behind_is_named_with_a_vacuum(
    behind: int | None, *, holds: bool
) -> None:
    slot = HorizonRow("replication slot", "standby", None, behind, None)
    measures = Measures((changed(TABLE, dead_rows=90_000),), (), (slot,))
    database: Any = SimpleNamespace(product=PRODUCTS["postgresql"])
    planned = needed(database, queue_of("fifo"), measures, MaintainLimits())
    assert [step.what for step in planned.steps] == ["VACUUM"]
    assert ["drop the slot" in note for note in planned.notes] == [True] * holds


@pytest.mark.parametrize(
    ("percent", "pages", "online", "what"),
    [
        (4.0, 5_000, True, None),
        (29.0, 5_000, True, "REORGANIZE"),
        (31.0, 5_000, True, "REBUILD"),
        (31.0, 5_000, False, "REORGANIZE"),
        (90.0, 1_000, True, None),
    ],
)
def test_an_index_is_maintained_by_its_fragmentation(
    percent: float, pages: int, online: bool, what: str | None
) -> None:
    index = changed(INDEX, fragmentation=percent, pages=pages)
    planned = plan_of(index, online=online)
    assert [step.what for step in planned.steps] == ([what] if what else [])
    for step in planned.steps:
        assert f"{percent:.0f} %" in step.reason
        assert ("cannot rebuild" in step.reason) == (not online)
        if what == "REORGANIZE":
            # REORGANIZE needs page locks; they are always removed.
            allow, reorganize = step.statements
            assert "ALLOW_PAGE_LOCKS = ON" in allow
            assert reorganize == "ALTER INDEX [orders_key] ON [dbo].[orders] REORGANIZE;"
            assert "ALLOW_PAGE_LOCKS = OFF" in step.always
        else:
            assert "ONLINE = ON" in step.sql
            assert "STATISTICS_NORECOMPUTE = ON" in step.sql


def test_statistics_that_were_not_frozen_stay_unfrozen() -> None:
    (step,) = plan_of(changed(INDEX, fragmentation=50.0, frozen=False)).steps
    assert "STATISTICS_NORECOMPUTE" not in step.sql


def test_page_locks_left_by_an_interrupted_run_are_removed() -> None:
    (step,) = plan_of(changed(INDEX, fragmentation=0.0, leftover=True)).steps
    assert (step.what, "interrupted" in step.reason) == ("NO PAGE LOCKS", True)


def test_a_heap_that_is_mostly_empty_is_rebuilt_online_or_not_at_all() -> None:
    heap = changed(TABLE, live_rows=10, fragmentation=0.0)
    (step,) = plan_of(heap, design="heap").steps
    assert step.sql.startswith("ALTER TABLE [dbo].[orders] REBUILD WITH (")
    assert "10 rows in 5,000 pages" in step.reason
    planned = plan_of(heap, design="heap", online=False)
    assert not planned.needed
    assert "offline" in planned.left_out[0]
    assert "nothing needed" in planned.lines()[0]


@pytest.mark.parametrize(("percent", "what"), [(20.0, "REORGANIZE"), (60.0, "REBUILD")])
def test_a_broker_queue_is_maintained_once_by_alter_queue(percent: float, what: str) -> None:
    inside = [changed(INDEX, name=f"queue_{n}", fragmentation=percent) for n in (1, 2)]
    planned = plan_of(*inside, design="broker")
    (step,) = planned.steps
    assert step.sql == f"ALTER QUEUE [dbo].[orders] {what};"
    # Such a queue can only be rebuilt offline.
    assert step.stops_callers == step.as_json()["stops_callers"] == (what == "REBUILD")
    assert ("callers continue" in planned.lines()[-1]) == (what == "REORGANIZE")


def test_old_statistics_are_updated() -> None:
    (step,) = plan_of(changed(TABLE, changed_rows=50_000)).steps
    assert step.sql == "UPDATE STATISTICS [dbo].[orders];"
