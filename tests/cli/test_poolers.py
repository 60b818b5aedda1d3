"""The command line through PgBouncer: what holds, what is left behind, what is refused."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from sqlalchemy import make_url

from console.designs import DESIGNS
from console.engines import open_database
from tests.cli.calls import Console
from tests.cli.verbs import refused
from tests.servers import Server, connect, execute, fresh_database, value, wait_until
from tests.servers.poolers import PROGRAM, pgbouncer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="needs Debian's pgbouncer"),
]

SIZE = 6
"""Server sessions of the pool; the console has at most three at once."""

READ_ONLY_SETTINGS = {"transaction_isolation", "transaction_read_only", "application_name"}


@pytest.fixture(scope="module")
def direct(server: Server) -> Iterator[str]:
    """The URL of a database, past the pooler."""
    with fresh_database(server.url) as url:
        yield url


@pytest.fixture(scope="module")
def pooled(direct: str) -> Iterator[Console]:
    """The command line on that database, through a pool in transaction mode."""
    with pgbouncer(direct, size=SIZE) as url:
        yield Console(url)


def settings_of_others(url: str) -> list[dict[str, str]]:
    """The settings that other clients find in all sessions of the pool."""
    with ExitStack() as stack:
        clients = [stack.enter_context(connect(url)) for _ in range(SIZE)]
        for client in clients:
            client.execute("BEGIN")  # holds its session until all are taken
        rows = [client.execute("SELECT name, setting FROM pg_settings") for client in clients]
        return [
            {name: setting for name, setting in cursor if name not in READ_ONLY_SETTINGS}
            for cursor in rows
        ]


VERBS = (
    "status",
    "status --json",
    "check",
    "doctor",
    "messages mail",
    "messages mail --payload --json",
    "errors mail",
    "consumers mail --seconds 0.3",
    "waits mail --seconds 0.3",
    "report mail",
    "audit",
    "discover",
    "designs",
    "roles",
    "config show",
    "sql purge mail",
    "push mail {}",
    "pop mail",
    "pop mail --complete",
    "push orders {} --wait 1s",
    "pop orders --wait 1s",
    "push news {}",
    "pop news --wait 1s",
    "release mail --unknown --yes",
    "requeue mail --yes",
    "purge orders --yes orders",
    "restore orders --yes orders",
    "pause orders --reason x --yes orders",
    "resume orders --yes orders",
    "protect orders --yes",
    "unprotect orders --yes orders",
    "note later orders",
    "resize orders 200 --yes orders",
    "relay orders --yes orders",
    "upgrade orders --yes",
    "doctor mail --fix --yes mail",
    "smoke news",
    "install fifo later",
    "uninstall later --yes later",
)


def test_verbs_work_and_leave_nothing_behind(pooled: Console, direct: str) -> None:
    before = settings_of_others(pooled.url)
    for words in ("claim mail", "ring orders --option size=100", "fifo news --option notify=on"):
        pooled.done("install", *words.split())
    for verb in VERBS:
        answer = pooled(*verb.split())
        # Nothing to pop, a finding: not one of them is refused.
        assert answer.status in {0, 1}, (verb, answer)
        for old, new in zip(before, settings_of_others(pooled.url), strict=True):
            assert {k: v for k, v in new.items() if v != old.get(k, v)} == {}, verb
    # The end of a session of the pool would say nothing about an action.
    assert value(direct, "SELECT bool_and(session LIKE 'pooled pid=%') FROM dbq.action") is True
    assert value(direct, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == 0


def test_what_needs_a_session_is_refused(pooled: Console, direct: str) -> None:
    Console(direct).done("install", "fifo", "bulk")
    with connect(direct) as connection:
        connection.execute("INSERT INTO bulk (payload) SELECT 'x' FROM generate_series(1, 5000)")
        connection.execute("DELETE FROM bulk WHERE id % 2 = 0")
        connection.execute("SELECT pg_stat_force_next_flush()")
    answer = pooled("maintain", "bulk", "--yes")
    assert "needs a session of its own" in answer.text + answer.err, answer
    refused(
        pooled("bench", "--designs", "fifo", "--seconds", "0.2"), 4, "pooler", "past the pooler"
    )
    answer = pooled("prove", "--designs", "fifo")
    refused(answer, 4, "pooler", "past the pooler")


def test_a_pooler_is_recognised_and_settings_hold(pooled: Console) -> None:
    database = open_database(pooled.url)
    for read_only in (False, True):
        with database.transaction("look", read_only=read_only) as connection:
            found = connection.exec_driver_sql(
                "SELECT current_setting('timezone'), current_setting('search_path'), "
                "current_setting('statement_timeout'), current_setting('lock_timeout'), "
                "current_setting('transaction_read_only')"
            ).one()
            expected = "on" if read_only else "off"
            assert tuple(found) == ("UTC", "pg_catalog, pg_temp", "30s", "5s", expected)
    assert database.pooled
    database.close()


@pytest.mark.parametrize("ignored", ["", "options"])
def test_a_time_zone_of_the_pooler_or_the_environment_does_not_hold(
    direct: str, ignored: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGTZ", "America/New_York")
    ignored = ignored or "extra_float_digits"
    with connect(direct) as admin, pgbouncer(direct, ignore_startup_parameters=ignored) as url:
        name = make_url(direct).database
        admin.execute(f"ALTER DATABASE {name} SET timezone = 'Asia/Tokyo'".encode())
        for one in (url, direct):
            database = open_database(one)
            with database.transaction("look", read_only=True) as connection:
                found = connection.exec_driver_sql("SELECT current_setting('timezone')").scalar()
            assert found == "UTC"
            database.close()


def test_statement_pooling_is_refused(direct: str) -> None:
    with pgbouncer(direct, mode="statement") as url:
        refused(Console(url)("status"), 3, "statement pooling", "transaction mode")


def test_options_that_a_pooler_cannot_be_given_are_named(pooled: Console) -> None:
    url = make_url(pooled.url).update_query_dict({"options": "-B 100"})
    answer = Console(url.render_as_string(hide_password=False))("status")
    refused(answer, 3, "-B 100", "pooler")


FINISHING = [name for name in DESIGNS if DESIGNS[name].keeps_row and name != "broker"]


@pytest.mark.parametrize("work_seconds", [2.0, pytest.param(660.0, marks=pytest.mark.long)])
def test_a_long_job_behind_a_pooler_keeps_its_message(
    direct: str, work_seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pooler ends the server session of a consumer that works; a repair takes nothing of it."""
    name = f"work_{work_seconds:.0f}"
    short, console, began = work_seconds < 10, Console(direct), time.monotonic()
    if short:
        file = tmp_path / "config.toml"
        file.write_text('stuck_after = "1s"\n')
        monkeypatch.setenv("DBQ_CONFIG", str(file))
    lifetime = {"server_idle_timeout": "1" if short else "600"}
    with pgbouncer(direct, size=2, **lifetime) as through:
        for design in FINISHING:
            queue = f"{name}_{design}"
            console.done("install", design, queue)
            console.done("push", queue, "long")
        with ExitStack() as stack:
            claims = {}
            for design in FINISHING:
                consumer = stack.enter_context(connect(through))
                pop = f"SELECT id, attempts, pg_backend_pid() FROM {name}_{design}_pop()"
                row = consumer.execute(pop.encode()).fetchone()
                assert row is not None
                claims[design] = (consumer, *row)
            pids = [pid for *_, pid in claims.values()]
            there = f"SELECT count(*) FROM pg_stat_activity WHERE pid = ANY(ARRAY{pids})"
            wait_until(
                lambda: value(direct, there) == 0 and time.monotonic() >= began + work_seconds,
                "the pooler has ended its sessions, and the consumers still work",
                900,
            )
            for design, (consumer, id_, attempts, _) in claims.items():
                queue = f"{name}_{design}"
                assert "claims_unknown" in console("doctor", queue).text
                console("doctor", queue, "--fix", "--yes", queue)
                console("release", queue, "--yes")
                assert console("pop", queue).status == 1, "a second consumer got it"
                done = consumer.execute(
                    f"SELECT {name}_{design}_complete(%s, %s)".encode(), (id_, attempts)
                ).fetchone()
                assert done == (True,), design


def test_a_bound_claim_and_direct_consumers_are_proven_gone(direct: str) -> None:
    console = Console(direct)
    console.done("install", "claim", "direct", "--option", "consumers=direct")
    console.done("install", "claim", "unsaid")
    for queue, bound in (("direct", "false"), ("unsaid", "true")):
        console.done("push", queue, "x")
        execute(direct, f"SELECT {queue}_pop(bound => {bound})")
        execute(direct, f"UPDATE {queue} SET processing_started_at = now() - interval '1 h'")
        wait_until(lambda: "claims_gone" in console("doctor").text, "proven gone")
        console.done("release", queue, "--yes")
        assert console.done("pop", queue).text == "x\n"
    assert "consumers_unsaid" in console("doctor", "unsaid").text
    assert "consumers_unsaid" not in console("doctor", "direct").text
