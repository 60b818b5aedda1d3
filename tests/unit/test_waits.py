"""From sampled sessions to waits: shares of time, the worst sample, counters that were reset."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from console.catalog import Queue, installed_queue
from console.designs import DESIGNS
from console.engines import PRODUCTS
from console.formats import plain
from console.monitor.activity import Activity, Lock, ObjectRow, Objects, Session
from console.monitor.row_holder import SessionKey
from console.monitor.waits import (
    CounterRow,
    HorizonRow,
    Wait,
    WaitReport,
    WaitWindow,
    differences,
    watch,
)
from console.views.view import Display
from console.views.waits import VIEW
from tests.tools.hostile import COSTLY

DATABASE = "shop"


def queue(name: str, design: str = "naive", **options: str) -> Queue:
    definition = DESIGNS[design]
    return installed_queue("public", name, definition, definition.complete_options(options))


ORDERS, MAILS = queue("orders"), queue("mails", "claim")


def lock(on: str, *, granted: bool = True) -> Lock:
    return Lock("public", on, on, "relation", "RowExclusiveLock", granted)


def session(
    key: SessionKey, wait: str | None = "running", *on: str, blocked_by: Sequence[SessionKey] = ()
) -> Session:
    return Session(
        key,
        kind="client backend",
        database=DATABASE,
        user="app",
        state="active",
        wait_kind="Lock" if blocked_by else "CPU",
        wait=wait,
        wait_seconds=1.0 if blocked_by else None,
        waits_for="ShareLock on transactionid" if blocked_by else None,
        blocked_by=tuple(blocked_by),
        locks=tuple(lock(name) for name in on),
    )


HIDDEN = Session(9, user="somebody", locks=(lock("orders"),))


def window_of(*samples: Sequence[Session], queues: Sequence[Queue] = (ORDERS, MAILS)) -> WaitWindow:
    window = WaitWindow("postgresql", DATABASE, queues)
    for sessions in samples:
        window.add(Activity(tuple(sessions)))
    return window


def shares(window: WaitWindow) -> dict[tuple[str | None, str | None], tuple[object, ...]]:
    return {
        (wait.queue.name if wait.queue else None, wait.wait): (
            wait.share,
            wait.sessions,
            wait.average,
        )
        for wait in window.waits()
    }


def test_waits_have_shares_of_the_samples_for_each_queue_and_the_database() -> None:
    holder = session(1, "running", "orders")
    waiters = [session(n, "transactionid", "orders", blocked_by=[1]) for n in (2, 3)]
    other = session(4, "running")
    window = window_of([holder, *waiters, other], [holder, waiters[0]], [other], [])
    assert window.samples == 4
    assert shares(window) == {
        ("orders", "running"): (0.5, 1, 0.5),
        ("orders", "transactionid"): (0.5, 2, 0.75),
        (None, "running"): (0.75, 2, 1.0),
        (None, "transactionid"): (0.5, 2, 0.75),
    }


def test_a_wait_for_a_lock_of_one_queue_does_not_count_for_another() -> None:
    both = replace(
        session(1, "relation", "mails", blocked_by=[2]),
        locks=(lock("mails"), lock("orders", granted=False)),
    )
    assert [key for key, _ in shares(window_of([both]))] == ["orders", None]


def test_queues_not_requested_and_other_databases_do_not_count() -> None:
    elsewhere = replace(session(1, "running", "orders"), database="other")
    assert shares(window_of([elsewhere], queues=[MAILS])) == {}


def test_a_hidden_wait_counts_as_unknown_and_not_as_no_wait() -> None:
    (wait,) = window_of([HIDDEN], [HIDDEN]).waits()
    assert (wait.queue, wait.kind, wait.wait, wait.share) == (ORDERS, None, None, 1.0)
    assert wait.meaning is None
    assert wait.as_json()["wait"] is None


def test_every_wait_has_its_meaning_for_the_design() -> None:
    samples = [session(1, "transactionid", "orders", "mails", blocked_by=[2])]
    for_orders, for_mails, for_all = (w.meaning for w in window_of(samples).waits())
    assert for_orders
    assert for_mails
    assert for_all
    assert "Part of the design" in for_orders
    assert "Not from pop" in for_mails
    assert for_all not in {for_orders, for_mails}


def test_the_worst_sample_is_the_last_with_most_waiters() -> None:
    holder = session(1, "running", "orders")
    first, second = (session(n, "transactionid", "orders", blocked_by=[1]) for n in (2, 3))
    window = window_of([holder], [holder, first], [holder, second], [holder], [])
    assert [s.key for s in window.worst.relevant_sessions] == [1, 3]
    assert (window.worst_at_sample, window.samples_with_waiters) == (3, 2)


def test_without_waiters_the_last_sample_is_kept() -> None:
    window = window_of([session(1, "running", "orders")], [session(2, "running", "orders")])
    assert [s.key for s in window.worst.relevant_sessions] == [2]
    assert (window.worst_at_sample, window.samples_with_waiters) == (2, 0)


def test_relevant_sessions_are_those_using_the_queue_and_all_linked_by_waits() -> None:
    """5 waits for 4, which has nothing to do with the queue; 6 only works in the database."""
    sessions = [
        session(1),
        session(2, "transactionid", "orders", blocked_by=[1]),
        session(3, "relation", blocked_by=[2, 7]),
        session(4),
        session(5, "relation", blocked_by=[4]),
        session(6),
    ]
    activity = Activity(tuple(sessions))
    assert {s.key for s in activity.relevant_sessions} == {1, 2, 3, 7}
    assert activity.by_key[7] == Session(7)
    assert {(tree.key, tree.size) for tree in activity.trees} == {(1, 2), (7, 2)}


OBJECTS = Objects(
    (ORDERS, MAILS),
    (
        ObjectRow("public", "orders", "orders", "table", 1),
        ObjectRow("public", "orders", "orders", "index", 2),
        ObjectRow("public", "mails", "mails", "table", 3),
        ObjectRow("public", "mails", "push", "advisory", 1),
    ),
)


def counter(
    id_: int | None, wait: str, count: int, ms: int, kind: str | None = "Lock"
) -> CounterRow:
    return CounterRow(id_, kind, wait, count, ms)


def test_counted_waits_are_differences_between_two_readings() -> None:
    before = [counter(1, "row lock", 5, 100), counter(None, "WRITELOG", 10, 50, None)]
    after = [
        counter(1, "row lock", 7, 130),
        counter(2, "row lock", 1, 10),
        counter(3, "row lock", 0, 0),
        counter(None, "WRITELOG", 10, 51, None),
        counter(None, "LCK_M_U", 2, 20, None),
    ]
    waits = differences(before, after, OBJECTS, "mssql")
    assert [(w.queue, w.kind, w.wait, w.count, w.ms) for w in waits] == [
        (ORDERS, "Lock", "row lock", 3, 40),
        (None, "Tran Log IO", "WRITELOG", 0, 1),
        (None, "Lock", "LCK_M_U", 2, 20),
    ]
    assert all(wait.meaning for wait in waits)


@pytest.mark.parametrize("after", [counter(1, "row lock", 4, 200), counter(1, "row lock", 6, 90)])
def test_a_counter_that_fell_is_ignored(after: CounterRow) -> None:
    assert differences([counter(1, "row lock", 5, 100)], [after], OBJECTS, "mssql") == []


def test_a_counter_that_disappeared_is_ignored() -> None:
    assert differences([counter(1, "row lock", 5, 100)], [], OBJECTS, "mssql") == []


TEXTS = st.text(max_size=60)
KEYS: st.SearchStrategy[SessionKey] = st.integers(1, 30) | st.text(min_size=1, max_size=40)
SESSIONS = st.builds(
    Session,
    key=KEYS,
    kind=st.none() | TEXTS,
    user=st.none() | TEXTS,
    application=st.none() | TEXTS,
    client=st.none() | TEXTS,
    state=st.sampled_from([None, "active", "idle in transaction", "prepared"]),
    wait_kind=st.sampled_from([None, "Lock", "CPU"]),
    wait=st.none() | TEXTS,
    wait_seconds=st.none() | st.floats(-1, 1e7),
    waits_for=st.none() | TEXTS,
    transaction_seconds=st.none() | st.floats(-1, 1e7),
    state_seconds=st.none() | st.floats(-1, 1e7),
    query=st.none() | TEXTS,
    blocked_by=st.lists(KEYS, max_size=3).map(tuple),
    locks=st.lists(
        st.builds(Lock, st.just("public"), st.just("orders"), TEXTS, TEXTS, TEXTS, st.booleans()),
        max_size=3,
    ).map(tuple),
)


def report(activity: Activity, name: str = "orders", **more: object) -> WaitReport:
    reported_queue = queue(name)
    known = Wait(
        reported_queue, "Lock", "tuple", 3, 0.5, 1.5, meaning="It is so. It means that. " * 9
    )
    counted = Wait(None, "Tran Log IO", "WRITELOG", ms=1234, count=5)
    values: dict[str, object] = {
        "connection": "here",
        "seconds": 5.0,
        "samples": 25,
        "waits": (known, Wait(reported_queue, None, None, 1, 1.0, 1.0), counted),
        "activity": activity,
        "activity_at_sample": 3,
        "samples_with_waiters": 3,
        "horizon": (HorizonRow("client backend", name, 4, 10, 3.0),),
        "dead_rows": {("public", name): 12_345},
        "missing": {"sessions": f"{name} is no member of pg_read_all_stats: " + "so " * 30},
    }
    return WaitReport(**(values | more))  # type: ignore[arg-type]  # by name


def lines(report: WaitReport, queues: Sequence[Queue], *, everything: bool) -> list[str]:
    """What is printed."""
    of = replace(report, queues=tuple(queues), of_database=everything)
    return [*VIEW.lines(of, Display(UTC, datetime.now(UTC)))]


@COSTLY
@given(st.lists(SESSIONS, max_size=12), st.text(min_size=1, max_size=63))
def test_any_report_fits_80_columns_and_moves_no_cursor(sessions: list[Session], name: str) -> None:
    found = report(Activity(tuple(sessions)), name)
    for everything in (False, True):
        for line in lines(found, [queue(name)], everything=everything):
            assert cell_len(line) <= 80
            assert plain(line) == line


def test_wide_letters_take_two_columns() -> None:
    wide = replace(session(1, "running", "orders"), application="注文" * 30)
    found = list(
        lines(report(Activity((wide,)), "注文" * 12), [queue("注文" * 12)], everything=False)
    )
    assert max(map(cell_len, found)) <= 80
    assert "注文" * 12 in found[0]


def test_disconnected_and_hidden_sessions_are_reported_as_such() -> None:
    activity = Activity((session(1, "transactionid", "orders", blocked_by=[2]), HIDDEN))
    text = "\n".join(lines(report(activity), [ORDERS], everything=False))
    assert "session 2  ? (its state is not known)\n│ disconnected meanwhile" in text
    assert "session 9  ? (its state is not known)\n  user somebody" in text
    assert "? (hidden)  in 100% of the samples, 1 session, 1.0 at a time" in text
    assert "Not visible: orders is no member" in text


def test_a_server_without_wait_views_is_not_queried_and_this_is_reported() -> None:
    missing = {"waits": "this is no such server", "rates": "nor has it those"}
    capabilities = SimpleNamespace(missing=missing, database=DATABASE, counts_rows=True)
    product = PRODUCTS["mssql"]
    database: Any = SimpleNamespace(product=product, capabilities=capabilities, label="here")
    report = watch(database, [ORDERS])
    assert (report.samples, report.waits, report.missing) == (0, (), {"waits": missing["waits"]})
    assert report.as_json()["missing"] == [{"what": "waits", "why": "this is no such server"}]
    (first, *others) = lines(report, [ORDERS], everything=False)
    assert first.startswith("orders (naive), 0 samples in ")
    assert others == ["Not visible: this is no such server"]


def test_many_waiters_are_counted_instead_of_shown() -> None:
    waiting = [session(n, "tuple", "orders", blocked_by=[1]) for n in range(2, 40)]
    activity = Activity((session(1, "running", "orders"), *waiting))
    text = "\n".join(lines(report(activity), [ORDERS], everything=False))
    assert "└─ and 30 sessions more" in text
    assert text.count("waits for 1.0 s for ShareLock") == 8


def test_a_long_chain_of_waits_stays_within_80_columns() -> None:
    row = [session(n, "transactionid", "orders", blocked_by=[n - 1]) for n in range(2, 400)]
    activity = Activity((session(1, "running", "orders"), *row))
    found = list(lines(report(activity), [ORDERS], everything=False))
    assert max(map(len, found)) <= 80
    assert any("└─ and 384 sessions more" in line for line in found)


def test_a_deadlock_is_reported() -> None:
    pair = [session(n, "transactionid", "orders", blocked_by=[3 - n]) for n in (1, 2)]
    text = "\n".join(lines(report(Activity(tuple(pair))), [ORDERS], everything=False))
    assert "session 1  in a DEADLOCK: waits for 1.0 s for ShareLock on transactionid" in text
