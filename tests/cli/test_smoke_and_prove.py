"""smoke and prove."""

import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from console.actions.smoke import smoke_design
from console.designs import DESIGNS
from console.engines import open_database
from console.features.prove import run
from console.features.prove.run import NOT_TRIED
from console.features.prove.trial import Line, Outcome
from console.load import worker_round
from console.load.worker_round import WorkerRound
from tests.cli.calls import Console
from tests.cli.conftest import Install
from tests.servers import PATIENCE_SECONDS, execute, value, wait_until

SCRATCH = "SELECT count(*) FROM pg_class WHERE relname LIKE 'dbq\\_smoke\\_%'"
SCRATCH_FUNCTIONS = "SELECT count(*) FROM pg_proc WHERE proname LIKE 'dbq\\_smoke\\_%'"
LISTED = "SELECT count(*) FROM dbq.queue WHERE queue_name LIKE 'dbq\\_smoke\\_%'"


def nothing_left(console: Console) -> bool:
    return all(value(console.url, q) == 0 for q in (SCRATCH, SCRATCH_FUNCTIONS, LISTED))


def test_the_json_object_of_smoke_has_stable_keys(console: Console, install: Install) -> None:
    name = install("fifo", "order=strict")
    console.done("push", name, "stays")
    answer = console.done("smoke", name, "--json")
    json = answer.json
    percentiles = {"p50", "p95", "p99"}
    assert (set(json.pop("push_seconds")), set(json.pop("pop_seconds"))) == (
        percentiles,
        percentiles,
    )
    assert json == {
        "queue": name,
        "design": "fifo",
        "order": "strict",
        "messages": 340,
        **dict.fromkeys(("lost", "doubled", "damaged", "out_of_order", "unfinished"), 0),
        "errors": [],
        "subscribers": [],
        "ok": True,
    }
    assert answer.err == ""
    assert console.drained(name) == ["stays"]
    assert nothing_left(console)


@pytest.mark.long
@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    "kind",
    [
        "ring size=1 max_bytes=1",
        "ring size=5 payload=json in_hand=on",
        "fifo max_bytes=1 payload=bytes",
        "claim payload=json max_bytes=3",
        "pending notify=on archive_at_pop=on",
        "split dequeue=two_step payload=bytes",
    ],
)
def test_smoke_passes_for_small_and_unusual_queues(
    console: Console, install: Install, kind: str
) -> None:
    assert console.done("smoke", install(*kind.split()), "--json").json["ok"]
    assert nothing_left(console)


@pytest.mark.long
def test_smoke_runs_in_the_named_schema_and_prints_text(console: Console) -> None:
    execute(console.url, "CREATE SCHEMA elsewhere")
    text = console.done("smoke", "--design", "heap", "--schema", "elsewhere").text
    assert text.startswith("ok: heap, 340 messages, order none\n")
    assert ("p50" in text, "p99" in text) == (True, True)
    console("smoke", "--design", "claim", "--schema", "none").failed(2)
    assert nothing_left(console)


_TO_SCRATCH_TABLES = """
CREATE FUNCTION public.meddle() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN {body} RETURN new; END $$;
CREATE FUNCTION public.attach() RETURNS event_trigger LANGUAGE plpgsql AS $$
DECLARE
    made record;
BEGIN
    FOR made IN
        SELECT * FROM pg_event_trigger_ddl_commands()
        WHERE object_type = 'table' AND object_identity ~ 'dbq_smoke_[0-9a-f]+$'
    LOOP
        EXECUTE format(
            'CREATE TRIGGER t BEFORE INSERT ON %s FOR EACH ROW EXECUTE FUNCTION public.meddle()',
            made.object_identity
        );
    END LOOP;
END $$;
CREATE EVENT TRIGGER attach ON ddl_command_end WHEN TAG IN ('CREATE TABLE')
EXECUTE FUNCTION public.attach()
"""


def run_before_each_push(console: Console, body: str) -> None:
    """Make every push to a scratch queue run this body first."""
    execute(console.url, _TO_SCRATCH_TABLES.replace("{body}", body))


@pytest.mark.long
def test_smoke_ends_when_messages_are_no_longer_pushed_or_popped(
    empty: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Judged by pushes and pops, not by a clock that a busy server cannot keep up with."""
    empty.done("install", "heap", "other")
    run_before_each_push(empty, "IF new.id > 60 THEN RETURN NULL; END IF;")
    monkeypatch.setattr("console.actions.smoke._STALLED_SECONDS", 0.1)
    with closing(open_database(empty.url)) as database:
        result = smoke_design(database, "public", DESIGNS["fifo"])
    assert result.errors == ("No message was pushed or popped for 0.1 s.",)
    assert not result.ok
    assert nothing_left(empty)


@pytest.mark.long
def test_smoke_waits_for_a_slow_server(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each message takes most of the time allowed until the next one."""
    passed = 0.0
    popped = WorkerRound.popped

    def popped_slowly(self: WorkerRound, client: int, payloads: Any, *times: int) -> None:
        nonlocal passed
        popped(self, client, payloads, *times)
        passed += 45.0 if payloads else 0.0

    monkeypatch.setattr(WorkerRound, "popped", popped_slowly)
    later = SimpleNamespace(monotonic=lambda: time.monotonic() + passed)
    monkeypatch.setattr("console.actions.smoke.time", later)
    now_us = worker_round.now_us
    monkeypatch.setattr(worker_round, "now_us", lambda: now_us() + round(passed * 1e6))
    with closing(open_database(database_url)) as database:
        assert smoke_design(database, "public", DESIGNS["fifo"]).ok


def test_a_failed_push_is_exit_1_with_its_error(empty: Console) -> None:
    """Every error is in the result; the scratch queue is removed nevertheless."""
    empty.done("install", "heap", "other")
    run_before_each_push(empty, "IF new.id > 60 THEN RAISE 'no more of that'; END IF;")
    answer = empty("smoke", "--design", "fifo", "--json")
    assert (answer.status, answer.err) == (1, "")
    assert answer.json["ok"] is False
    assert any("no more of that" in error for error in answer.json["errors"])
    assert answer.json["lost"] > 0
    plain = empty("smoke", "--design", "fifo")
    assert plain.status == 1
    assert plain.text.startswith("NOT OK")
    assert nothing_left(empty)


@pytest.mark.long
@pytest.mark.parametrize(
    ("number", "sessions"), [(signal.SIGINT, 1), (signal.SIGINT, 4), (signal.SIGTERM, 4)]
)
def test_an_interrupted_smoke_leaves_nothing_behind(
    empty: Console, number: signal.Signals, sessions: int
) -> None:
    """While one session works (or the queue is still being created), and while several do."""
    empty.done("install", "heap", "other")
    run_before_each_push(empty, "PERFORM pg_sleep(0.03);")
    with empty.process("smoke", "--design", "fifo") as running:
        wait_until(lambda: running.sessions() >= sessions, f"{sessions} sessions")
        running.send_signal(number)
        out, err = running.communicate(timeout=PATIENCE_SECONDS)
    assert (running.returncode, out, err) == (128 + number, b"", b"Interrupted.\n")
    assert nothing_left(empty)


PROVEN = Line("heap", "it holds", Outcome.PROVEN, "a | b\nc", 0.5)
FAILED = Line("fifo", "it does not hold", Outcome.FAILED, "1 lost")
LATE = Line("fifo", "it was late", Outcome.NOT_APPLICABLE, NOT_TRIED)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine is not a failure."""
    monkeypatch.setattr(run, "MOST_SECONDS", 3600.0)


def proving(monkeypatch: pytest.MonkeyPatch, *lines: Line) -> None:
    """Replace the proof by these lines."""

    class Proof:
        def __init__(self, *_: object) -> None:
            pass

        def run(self, *_: str) -> Iterator[Line]:
            yield from lines

    monkeypatch.setattr(run, "Proof", Proof)


def test_the_report_of_prove_is_on_stdout_or_in_a_file(
    console: Console, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    proving(monkeypatch, PROVEN)
    answer = console.done("prove", "--designs", "heap")
    head, _, counts, *_, last = lines = answer.text.splitlines()
    assert head.startswith("# What dbq-console ")
    assert " proves on PostgreSQL " in head
    assert " 0 failed, " in counts
    assert last.startswith("| it holds | proven | a \\| b c")
    assert "heap: it holds: proven\n" in answer.err
    file = tmp_path / "proof.md"
    assert str(file) in console.done("prove", "--output", str(file)).text
    assert file.read_text().splitlines()[-4:] == lines[-4:]
    answer = console.done("prove", "--output", str(tmp_path / "none" / "proof.md"))
    assert "could not be written" in answer.err
    assert answer.text.splitlines()[-4:] == lines[-4:]


def test_the_json_object_of_prove_has_stable_keys(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    proving(monkeypatch, PROVEN)
    json = console.done("prove", "--json").json
    markdown = json.pop("markdown")
    assert [json.pop(name) for name in ("connection", "schema")][1] == "public"
    assert json.pop("server").startswith("PostgreSQL ")
    assert json.pop("began").endswith("+00:00")
    assert {type(json.pop(name)) for name in ("console", "seconds")} == {str, float}
    assert json == {
        "ok": True,
        "complete": True,
        "proven": 1,
        "failed": 0,
        "not_answered": 0,
        "not_applicable": 0,
        "claims": [
            {
                "design": "heap",
                "claim": "it holds",
                "result": "proven",
                "evidence": "a | b\nc",
                "seconds": 0.5,
            }
        ],
    }
    assert "| it holds | proven | a \\| b c |" in markdown


@pytest.mark.parametrize("line", [FAILED, LATE], ids=["failed", "late"])
def test_a_claim_that_failed_or_was_not_tried_is_exit_1(
    console: Console, monkeypatch: pytest.MonkeyPatch, line: Line
) -> None:
    proving(monkeypatch, PROVEN, line)
    answer = console("prove")
    assert answer.status == 1
    assert ("- **fifo**: it does not hold: failed: 1 lost" in answer.text) == (line is FAILED)
    assert (f"; {NOT_TRIED}" in answer.text) == (line is LATE)
