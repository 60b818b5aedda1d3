"""Every design's procedures, interleaved at random: nothing is lost, doubled, or left over."""

import json
import re
from collections import Counter
from collections.abc import Callable
from functools import cache
from itertools import count, islice
from typing import Any

import pytest

from console.designs import Order
from tests.contract.variants import BEHAVIOURS, DEFAULTS, Variant, default, on
from tests.faults.harness.model import finish
from tests.microsoft.design_sessions import Installation, Run
from tests.microsoft.interpreter import Call
from tests.microsoft.server import AttentionError, ServerError
from tests.microsoft.tools import Tools

OF_BYTES = [default(variant.design.name, payload="bytes") for variant in DEFAULTS]
DESIGNS = {str(v): v for v in on("mssql", [*BEHAVIOURS, *OF_BYTES])}
Made = Callable[[Variant], Installation]


@pytest.fixture(scope="session")
def made(microsoft: Tools) -> Made:
    """The installation of a variant, read once."""
    read = cache(lambda name: Installation(DESIGNS[name], microsoft.tree))
    return lambda variant: read(str(variant))


@pytest.fixture(params=DESIGNS.values(), ids=str)
def variant(request: pytest.FixtureRequest) -> Variant:
    found: Variant = request.param
    return found


def interleave(made: Installation, seed: int, *faults: str) -> None:
    run = Run(made, seed, faults=faults)
    run.run_interleaved()
    run.drain_and_check()


@pytest.mark.parametrize("faults", ["", "attention", "failover attention"])
def test_each_message_comes_once(made: Made, variant: Variant, faults: str, long: bool) -> None:
    for seed in range(2000 if long else 4):
        interleave(made(variant), seed, *faults.split())


def test_one_session_pops_in_the_promised_order(made: Made, variant: Variant) -> None:
    """Each call is a transaction; a ring is full at its size, and everything empty at none."""
    for seed in range(4):
        run, waiting = Run(made(variant), seed), dict[Any, int]()
        for serial in range(30):
            if run.chance.randrange(5) < 3:
                due = run.chance.choice([-1000, 10**6]) + run.chance.randrange(50)
                given = {"due_time": due} if variant.order is Order.DUE else {}
                (row,) = run.call_alone("push", payload=str(serial), **given)
                if row["id"] is not None:
                    waiting[row["id"]] = due if given else serial
                slots = run.server.tables.get("orders_config", {(1,): {"size": 99}})[1,]["size"]
                assert (row["id"] is None) == (len(waiting) == slots and row["id"] not in waiting)
                continue
            is_stack, n = variant.order is Order.LIFO, run.chance.randint(1, 3)
            ready = {i: at for i, at in waiting.items() if at < 10**6}
            expected = sorted(ready, key=lambda i: ready[i], reverse=is_stack)[:n]
            rows = run.call_alone("pop_many", n=n) if n > 1 else run.call_alone("pop")
            ids = [row["id"] for row in rows]
            assert ids == expected or (variant.order is Order.NONE and len(ids) == len(expected))
            for id_ in ids:
                del waiting[id_]


CALLS: dict[str, dict[str, Any]] = {
    "push": {"payload": "new"},
    "push_many": {"payloads": '["one", "two"]'},
    "pop": {},
    "pop_many": {"n": 2},
    "complete": {},
    "fail": {"error": "broken"},
}


def cut(made: Installation, call: str, steps: int, how: str, *, is_open: bool) -> int | None:
    """End a call after so many steps: the level of transactions then; None: it has fewer.

    What it had committed counts, nothing else; nothing may be lost.
    """
    run, given = Run(made, 0), CALLS[call]
    if "orders_config" in run.server.tables:
        run.call_alone("relay", new_size=9)
    for payload in ("first", "next"):
        run.record_alone("push", payload=payload)
    if run.variant.finishes:
        (row,) = run.record_alone("pop")
        given = {**given, "id": row["id"]} if call in {"complete", "fail"} else given
    session = run.server.session()
    if is_open:
        session.begin()
        finish(run.call(session, "push", payload="before"))
    other = run.call(session, call, **given)
    if sum(1 for _ in islice(other, steps)) < steps:
        return None
    if session.commits:
        run.record(run.log(call, given, finish(other)))
    elif how == "attention":
        with pytest.raises(AttentionError):
            other.throw(AttentionError)
    else:
        other.close()
        run.server.fail_over()
    level = session.depth
    if level:
        session.roll_back()
    run.drain_and_check()
    return level


@pytest.mark.parametrize("how", ["attention", "failover"])
def test_a_call_that_is_cut_did_nothing_or_everything(
    made: Made, variant: Variant, how: str, long: bool
) -> None:
    """Under XACT_ABORT the caller's transaction ends with it."""
    for call in CALLS.keys() & made(variant).procedures.keys():
        for is_open in (False, True):
            for steps in count(4, 1 if long else 19):
                level = cut(made(variant), call, steps, how, is_open=is_open)
                if level is None:
                    assert steps > 4
                    break
                assert level == 0


def test_without_xact_abort_an_attention_leaves_the_transaction_to_its_caller(
    made: Made, variant: Variant, long: bool
) -> None:
    """Who rolls it back loses nothing."""
    there = made(variant)
    script = there.script.replace("SET NOCOUNT, XACT_ABORT ON", "SET NOCOUNT ON")
    assert script != there.script
    without = Installation(variant, there.parse, script)
    for call in CALLS.keys() & without.procedures.keys():
        for steps in count(4, 1 if long else 90):
            level = cut(without, call, steps, "attention", is_open=True)
            if level is None:
                break
            assert level >= 1


def end(call: Any, steps: int) -> list[Any] | None:
    """Run a call for so many steps at most: its rows, if it has ended."""
    try:
        for _ in range(steps):
            next(call)
    except StopIteration as ended:
        rows: list[Any] = ended.value
        return rows
    return None


def test_no_pop_overtakes_a_strict_push(made: Made) -> None:
    """Another push and a pop come between any two of its steps, and wait if they must."""
    overtake(made(DESIGNS["fifo-order=strict"]))


def overtake(made: Installation) -> None:
    for steps in count(1):
        run = Run(made, 0)
        calls = {
            1: ("push", {"payload": "first"}),
            2: ("push", {"payload": "second"}),
            3: ("pop", dict[str, Any]()),
        }
        running = {n: run.call(run.server.session(n), c[0], **c[1]) for n, c in calls.items()}
        if end(running[1], steps) is not None:
            assert steps > 5
            return
        for number in (2, 3, 1, 2, 3):
            if number in running and (rows := end(running[number], 500)) is not None:
                del running[number]
                run.record(run.log(*calls[number], rows))
        assert not running
        run.drain_and_check()


def test_a_pop_of_naive_waits_for_an_open_push_once_its_row_is_there(made: Made) -> None:
    """Between its number and its row, a later number overtakes it; afterwards none does."""
    popped = dict[bool, set[int]]()
    for steps in count(1):
        run = Run(made(DESIGNS["naive"]), 0)
        session = run.server.session(1)
        session.begin()
        push = run.call(session, "push", payload="open")
        stored = end(push, steps)
        run.record_alone("push", payload="committed")
        pop = run.call(run.server.session(2), "pop")
        rows = end(pop, 200)
        waited = rows is None
        if stored is None:
            finish(push)
        session.commit()
        (row,) = finish(pop) if rows is None else rows
        assert (row["payload"] == "open") == waited
        popped.setdefault(waited, set()).add(row["id"])
        if stored is not None:
            break
    assert popped == {False: {1, 2}, True: {1}}


RINGS = [variant for variant in DESIGNS.values() if variant.design.name == "ring"]


@pytest.mark.parametrize("variant", RINGS, ids=str)
def test_repairs_bring_back_what_failovers_leave_in_a_ring(
    made: Made, variant: Variant, long: bool
) -> None:
    """Without a relay: orphans and holes are counted, repaired, and every message is popped."""
    repaired = Counter[str]()
    for seed in range(1000 if long else 8):
        run = Run(made(variant), seed, faults=("failover", "attention"))
        run.run_interleaved()
        numbers, tables = run.server.sequences, run.server.tables
        parked = {row["number"] for row in tables["orders_parked"].values() if not row["void"]}
        stored = {row["message_id"] for row in tables["orders"].values()} - {None}
        orphans = {n for n in stored - parked if n <= numbers["orders_pop_seq"]}
        found = run.repair()
        assert found["park_orphans"] == len(orphans)
        repaired.update(found)
        run.drain_and_check(relays=False)
        assert not any(run.repair().values()), "it was repaired already"
    assert repaired["park_orphans"]
    assert repaired["drop_holes"] + repaired["void_holes"]


def test_a_pause_exchanges_procedures_and_resume_restores_them(
    made: Made, variant: Variant
) -> None:
    """Also where the installation's text comes meanwhile, as an upgrade's does."""
    run, kept = Run(made(variant), 1), []
    run.record_alone("push", payload="before")
    names = {
        f"orders_{name}": "yes" if name.startswith("push") else "no" for name in list(CALLS)[:4]
    }
    before = {name: code.partition("PROCEDURE")[2] for name, code in run.server.definitions.items()}
    for function, pushes in names.items():
        kept.append({"name": function, "definition": run.server.definitions[function]})
        run.call_alone(run.made.statement("pause.exchange", function=function, pushes=pushes))
    assert not run.call_alone("pop")
    assert not run.call_alone("pop_many", n=3)
    assert run.call_alone("push", payload="refused") == [{"id": None}]
    assert run.call_alone("push_many", payloads='["a", "b"]') == [{"id": None}] * 2
    tampered = [{**one, "definition": f"{one['definition']} SELECT 1;"} for one in kept]
    for functions in (tampered, kept):
        row = {"schema_name": "sales", "queue_name": "orders", "functions": json.dumps(functions)}
        run.server.fill("pause", row)
        for function in names:
            called = run.made.statement("pause.restore_code", function=function)
            if functions is kept:
                run.call_alone(called)
                continue
            with pytest.raises(ServerError, match="is not what was there"):
                run.call_alone(called)
    after = {name: code.partition("PROCEDURE")[2] for name, code in run.server.definitions.items()}
    assert after == before
    run.call_alone(run.made.statement("pause.exchange", function="orders_pop", pushes="no"))
    upgrade = Call(run.made.procedures, "pop", run.server.session())
    finish(upgrade.execute(run.made.definitions["orders_pop"]))
    run.record_alone("push", payload="after")
    run.record_alone("pop")
    run.drain_and_check()
    assert len(run.popped) in {1, 2}


def test_uncache_gives_a_ring_its_caches_and_keeps_its_numbers(made: Made) -> None:
    run = Run(made(DESIGNS["ring"]), 1)
    for serial in range(3):
        run.record_alone("push", payload=str(serial))
    before = dict(run.server.sequences)
    run.server.caches = dict.fromkeys(run.server.caches, 5000)
    run.call_alone(run.made.statement("ring.uncache"))
    assert run.server.sequences == before
    assert max(run.server.caches[f"orders_{end}_seq"] for end in ("push", "pop")) <= 100


def planted(made: Installation, name: str, text: str, replacement: str) -> Installation:
    """The same design, with a mistake in one procedure."""
    batches = made.script.split("\nGO\n")
    (at,) = (n for n, b in enumerate(batches) if f"PROCEDURE [sales].[orders_{name}]" in b)
    batches[at], replaced = re.subn(text, replacement, batches[at], flags=re.DOTALL)
    assert replaced
    return Installation(made.variant, made.parse, "\nGO\n".join(batches))


_SKIPS = ("READPAST, ", "")
_ORDER = r"ORDER BY m\.id( DESC)?\n"
PLANTED = {
    ("broker-conversation=each", "a conversation that stays open"): (
        *("pop_many", "END CONVERSATION @conversation;", ""),
    ),
    ("broker", "a push without its message"): ("send", "SEND ON .*?;", ""),
    ("broker", "a batch in reverse"): (
        *("pop_many", "ORDER BY r.message_sequence_number", "ORDER BY -r.message_sequence_number"),
    ),
    ("broker", "a conversation of all sessions"): ("send", "session_id = @@SPID", "session_id > 0"),
    ("naive", "a pop that reads before it locks"): (
        *("pop_many", "WITH head AS .*?INTO @popped [^;]*;"),
        "INSERT INTO @popped SELECT TOP (@n) m.message_id, m.message, m.time "
        "FROM [sales].[orders] AS m WITH (NOLOCK) ORDER BY m.message_id; "
        "DELETE m FROM [sales].[orders] AS m WITH (ROWLOCK, READPAST) "
        "INNER JOIN @popped AS p ON m.message_id = p.id;",
    ),
    ("naive", "a push whose rows have two numbers"): ("push_many", "        d.id,", "d.id + 1,"),
    ("heap", "a push of two messages"): (
        *("push", r"VALUES \(@payload\)", "VALUES (@payload), (@payload)"),
    ),
    ("heap-archive_at_pop=on", "an archive outside the transaction"): (
        *("pop_many", r"(INSERT INTO \S+archive)", r"COMMIT TRANSACTION; BEGIN TRANSACTION; \1"),
    ),
    ("fifo", "a pop from the other end"): ("pop", "ORDER BY m.id", "ORDER BY m.id DESC"),
    ("fifo", "a batch from the other end"): ("pop_many", "ORDER BY m.id\n", "ORDER BY m.id DESC\n"),
    ("fifo-order=strict", "a pop that skips"): (
        "pop",
        "ROWLOCK, READC",
        "ROWLOCK, READPAST, READC",
    ),
    ("fifo-order=strict", "a push without its lock"): (
        *("push", r"EXEC @lock = .*?(INSERT INTO .*?;).*?COMMIT", r"\1 COMMIT"),
    ),
    ("stack", "a pop from the bottom"): ("pop", "m.id DESC", "m.id"),
    ("pending", "a pop before it is due"): ("pop", "m.due_time <= @now", "1 = 1"),
    ("claim", "a pop of claimed messages"): (
        *("pop", r"INDEX \(\[orders_ready\]\), (.*?)m.processing_started_at IS NULL", r"\1 1 = 1"),
    ),
    ("claim", "a complete of any claim"): ("complete", r"AND \(@attempts IS .*?\);", ";"),
    ("claim", "a fail that tells nobody"): (
        "fail",
        "done_at = SYSUTCDATETIME\\(\\)",
        "done_at = NULL",
    ),
    ("status", "a choice without locks of any state"): (
        "pop_many",
        r"UPDLOCK, HOLDLOCK\)(.*?)WHERE \[orders\]\.status = 0",
        r"NOLOCK)\1WHERE 1 = 1",
    ),
    ("split", "a push without its payload"): ("push", r"INSERT INTO \S+orders_data.*?;", ""),
    ("split", "payloads in the wrong order"): (
        "push_many",
        "ORDER BY q.position",
        "ORDER BY -q.position",
    ),
    ("split", "a pop of any state"): (
        *("pop_many", r"INDEX \(\[orders_ready\]\), (.*?)m.status = 0", r"\1 m.status < 2"),
    ),
    ("ring-in_hand=on", "a claim that is not kept"): (
        *("pop_many", r"INSERT INTO \S+orders_in_hand.*?t\.lane = 1;", ""),
    ),
    ("ring-in_hand=on", "a complete of any claim"): ("complete", r"AND \(@attempts IS .*?\);", ";"),
}


@pytest.mark.parametrize("mistake", PLANTED, ids=lambda mistake: mistake[1])
def test_a_planted_mistake_is_found(made: Made, mistake: tuple[str, str]) -> None:
    design, _ = mistake
    name, text, replacement = PLANTED[mistake]
    wrong = planted(made(DESIGNS[design]), name, text, replacement)
    with pytest.raises((AssertionError, ServerError, ValueError)):  # noqa: PT012 - any of these
        test_one_session_pops_in_the_promised_order(lambda _: wrong, wrong.variant)
        if wrong.variant.order is Order.STRICT:
            overtake(wrong)
        for seed in range(100):
            interleave(wrong, seed, *(("failover", "attention") if seed % 2 else ()))
