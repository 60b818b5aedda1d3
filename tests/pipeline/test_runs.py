"""The record of a run: its file, its outcome, the list of runs, and no secrets."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.errors import ConsoleError, RefusedError
from console.features.lake import launch, runs
from console.features.lake import spark as sessions
from console.features.lake.cli.progress import shown_words, without_secrets
from console.features.lake.lake import Lake
from console.features.lake.launch import Job
from console.features.lake.runs import Run, RunFile, RunOutcome
from tests.cli.calls import call
from tests.pipeline.archive_tools import push_and_pop
from tests.pipeline.conftest import NewQueue
from tests.pipeline.test_lake import modes
from tests.servers import wait_until
from tests.tools.local_tasks import LocalTasks

CORE = "Pl4ntedC0re"


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with the runs of this test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return runs.folder()


def only(root: Path) -> Run:
    (run,) = runs.read(root).runs
    return run


# -- the file


def test_a_run_is_recorded_from_its_beginning_to_its_end(root: Path) -> None:
    record = RunFile.begin(root, "archive", words=("pipeline", "archive", "jobs"), queue="jobs")
    assert only(root).outcome is RunOutcome.RUNNING
    record.set_subject(connection="prod", lake="/lake")
    result = {"done": True, "result": {"exported": 12, "bytes": 3_000}}
    record.set_result(result, ["plan 1: exported 12"])
    record.end(0)
    run = only(root)
    assert (run.outcome, run.queue, run.connection, run.lake) == (
        *(RunOutcome.DONE, "jobs", "prod", "/lake"),
    )
    assert (run.rows, run.bytes, run.result) == (12, 3_000, result)
    assert run.ended_at is not None
    later = run.began_at + timedelta(days=1)
    assert run.seconds(later) == (run.ended_at - run.began_at).total_seconds()
    assert json.loads(json.dumps(run.as_json(later)))["result"] == result
    assert oct(record.path.stat().st_mode)[-3:] == "600"
    assert [path.name for path in root.iterdir()] == [record.path.name]


def test_progress_is_known_at_once_and_written_once_a_second(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = RunFile.begin(root, "replay")
    record.report_progress("push: 1 of 9 messages", 1, 0)
    assert only(root).progress == "", "it is too early to write again"
    monkeypatch.setattr(runs, "_PROGRESS_SECONDS", 0.0)
    threads = [
        threading.Thread(target=record.report_progress, args=(f"push: {n} of 9", n, 0))
        for n in range(2, 9)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    run = only(root)
    assert run.rows == int(run.progress.split()[1])
    assert run.running


def test_the_keys_of_a_runs_file_are_stable(root: Path) -> None:
    RunFile.begin(root, "replay")
    (path,) = root.glob("*.json")
    keys = set(json.loads(path.read_bytes()))
    assert {"progress", "progress_at", "progress_rows", "progress_bytes"} <= keys


def test_the_outcome_of_a_run_depends_on_verb_status_and_result(root: Path) -> None:
    for verb, status, result, outcome in (
        ("archive", 0, None, RunOutcome.DONE),
        ("verify", 1, {"pushes": 5, "pops": 4}, RunOutcome.MISMATCH),
        ("verify", 1, None, RunOutcome.FAILED),
        ("replay", 2, None, RunOutcome.FAILED),
        ("replay", 4, None, RunOutcome.REFUSED),
        ("rollup", 143, None, RunOutcome.STOPPED),
    ):
        record = RunFile.begin(root, verb)
        if result is not None:
            record.set_result(result, [])
        record.end(status)
        (run,) = (one for one in runs.read(root).runs if one.id == record.id)
        assert (run.outcome, run.running) == (outcome, False)
        assert run.moved == ("9" if result else "")


def test_a_killed_run_has_the_outcome_silent(root: Path) -> None:
    """Also while it is a zombie, and if its pid belongs to another process."""
    source = (
        "import sys, time\nfrom pathlib import Path\n"
        "from console.features.lake.runs import RunFile\n"
        "RunFile.begin(Path(sys.argv[1]), 'archive')\nprint(flush=True)\ntime.sleep(600)"
    )
    command = [sys.executable, "-c", source, str(root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert only(root).outcome is RunOutcome.RUNNING
        process.kill()
        wait_until(lambda: only(root).outcome is RunOutcome.SILENT, "a run without a word")
    run = only(root)
    assert run.outcome is RunOutcome.SILENT
    assert run.seconds(datetime.now(UTC)) is None, "nobody knows when"
    assert replace(run, progress_rows=63_000).moved == "≈63,000", "it may have moved more"
    another = replace(run, pid=os.getpid(), id="another", alive=None)
    RunFile(root, another)._write()
    assert {run.outcome for run in runs.read(root).runs} == {RunOutcome.SILENT}
    with pytest.raises(RefusedError, match="not running here"):
        runs.stop(another)


def test_a_run_on_another_machine_may_be_running(root: Path) -> None:
    record = RunFile.begin(root, "archive")
    other = f"not-{socket.gethostname()}"
    record.set_subject(host=other)
    assert only(root).outcome is RunOutcome.ELSEWHERE
    with pytest.raises(RefusedError, match=other):
        runs.stop(only(root))


def test_the_newest_runs_and_those_still_running_are_kept(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "KEPT", 3)
    running = RunFile.begin(root, "archive")
    ended = []
    for _ in range(5):
        record = RunFile.begin(root, "rollup")
        for end in ("out", "err"):
            record.path.with_suffix(f".{end}").write_text("said")
        record.end(0)
        ended.append(record.id)
    last = RunFile.begin(root, "verify")
    found = [run.id for run in runs.read(root).runs]
    assert found == [last.id, *reversed(ended[-2:]), running.id]
    assert len([*root.iterdir()]) == 2 + 2 * 3, "what they said goes with them"


def test_files_that_are_not_runs_are_counted(root: Path) -> None:
    RunFile.begin(root, "archive")
    for number, text in enumerate(('{"format": 1', "[]", '{"format": 9}', '{"format": 1}')):
        (root / f"x{number}.json").write_text(text)
    run_list = runs.read(root)
    assert (len(run_list.runs), run_list.unreadable) == (1, 4)
    assert runs.read(root / "nowhere").runs == ()


# -- by the command line


def test_each_call_records_a_run_except_a_dry_run(
    root: Path, new_queue: NewQueue, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    @contextmanager
    def local_tasks(*_: object) -> Any:
        yield LocalTasks()

    monkeypatch.setattr(sessions, "tasks", local_tasks)
    client = new_queue("fifo", archive_at_pop="on")
    sent = push_and_pop(client, 30)
    name, location = client.queue.name, str(tmp_path / "lake")
    words = ("pipeline", "archive", name, "--lake", location, "--url", client.url)
    planned = call(*words, "--dry-run")
    assert planned.status == 0
    assert "Spark on local[*,4]: its connections are authenticated and encrypted" in planned.text
    assert runs.read(root).runs == ()

    done = call(*words, "--shared", "--yes", "--json")
    assert done.status == 0, done.err
    assert modes(Lake(location)) == ({0o660}, {0o2770})
    assert done.json["plan"]["spark"]["encrypted"]
    run = only(root)
    assert (run.outcome, run.rows, run.queue, run.lake) == (RunOutcome.DONE, 30, name, location)
    assert run.result == done.json
    result = done.json["result"]
    figures = ("exported", "deleted", "in_lake_before", "files")
    assert [result[figure] for figure in figures] == [30, 30, 0, 1]
    assert set(result["rows_per_second"]) == {"export", "verify", "delete"}
    assert run.bytes == result["bytes"] == sum(len(payload.encode()) for payload in sent)
    assert run.progress.startswith("delete: 1 of 1 parts, 30 rows")
    assert run.connection == client.database.label

    push_and_pop(client, 3)
    assert call(*words).status == 4
    assert len(runs.read(root).runs) == 1, "it was only the plan"
    assert call(*words, "--yes", "another").status == 4
    assert runs.read(root).runs[0].outcome is RunOutcome.REFUSED

    listed = call("pipeline", "runs", "--json").json
    assert [one["outcome"] for one in listed["runs"]] == ["refused", "done"]
    assert listed["runs"][1]["result"] == done.json
    lines = call("pipeline", "runs").text.splitlines()
    assert ["refused" in lines[1], "is not the queue's name" in lines[2], "done" in lines[3]] == [
        *(True, True, True)
    ]


def test_a_job_runs_even_if_its_run_cannot_be_recorded(root: Path) -> None:
    root.parent.mkdir(parents=True)
    root.write_text("no folder")
    call("pipeline", "verify").failed(2, "will not be in the list", "verify needs a --pop-log")


@given(st.text("/@:%'\" ü", max_size=5), st.sampled_from(["--url", "--url=", "--lake", "--lake="]))
def test_no_secret_of_a_command_line_is_kept(characters: str, option: str) -> None:
    from urllib.parse import quote  # noqa: PLC0415

    login = f"u:{quote(characters + CORE + characters, safe='')}"
    uris = (
        f"postgresql+psycopg://{login}@h/db",
        f"postgresql+psycopg://h/db?password={CORE}",
        f"mssql+pyodbc:///?odbc_connect=UID%3Du%3BPWD%3D{CORE}",
        f"nonsense {CORE}",
    )
    lakes = (f"s3://{login}@bucket/folder", f"s3://bucket/folder?secret_key={CORE}&region=x")
    for uri in uris if "url" in option else lakes:
        words = [f"{option}{uri}"] if option.endswith("=") else [option, uri]
        kept = " ".join(shown_words(["pipeline", *words, "jobs"]))
        assert CORE not in kept
        assert kept.endswith(" jobs")
    assert without_secrets("s3://bucket/a:b@c") == "s3://bucket/a:b@c"


# -- as a separate process


def test_a_separate_process_that_fails_records_its_error(root: Path) -> None:
    id_ = launch.start(Job("verify", ("pipeline", "verify")), root)
    wait_until(lambda: only(root).status is not None, "an end")
    run = only(root)
    assert (run.id, run.status, run.outcome) == (id_, 2, RunOutcome.FAILED)
    assert run.error["what"].startswith("verify needs a --pop-log")
    # The message comes after the file, which has the outcome by then.
    wait_until(
        lambda: launch.tail(id_, "err", root).startswith("verify needs a --pop-log"), "words"
    )
    assert launch.tail(id_, "out", root) == ""


def test_a_command_line_that_cannot_be_parsed_is_recorded_by_its_launcher(root: Path) -> None:
    launch.start(Job("verify", ("pipeline", "verify", "--no-such-option")), root)
    wait_until(lambda: only(root).status is not None, "an end")
    assert only(root).status == 2
    assert "No such option" in " ".join(only(root).error.values())


_WAITING = """
import signal, sys
from console.cli import main
from console.features.lake.commands.pipeline import COMMAND as pipeline
from console.cli.command import as_command
from console.features.lake.cli.progress import RecordedJob
from console.verbs.command import Command
def wait(_): print("at it", flush=True) or signal.pause()
pipeline.add_command(as_command(Command("wait", wait), kind=RecordedJob))
sys.argv[1:] = ["pipeline", "wait"]
main()
"""


@dataclass(frozen=True)
class Waiting(Job):
    """A job that only a signal ends."""

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-c", _WAITING]


def test_a_run_outlives_the_process_that_began_it_and_can_be_stopped(root: Path) -> None:
    id_ = launch.start(Waiting("wait", ("pipeline", "wait")), root)
    wait_until(lambda: launch.tail(id_, "out", root) == "at it\n", "its word")
    run = only(root)
    assert run.running
    assert os.getsid(run.pid) == run.pid, "nothing that is sent to this terminal reaches it"
    assert launch.RUN_ID not in Job("x", ()).environ()
    runs.stop(run)
    wait_until(lambda: only(root).status is not None, "an end")
    assert (only(root).status, only(root).outcome) == (128 + signal.SIGTERM, RunOutcome.STOPPED)
    assert only(root).error["what"] == "Interrupted."


def test_a_dry_run_gives_the_plan_and_can_be_cancelled() -> None:
    plan = launch.DryRun(Job("rollup", ("pipeline", "runs")))
    assert plan.run() == ["No job has been run on this machine."]
    wrong = launch.DryRun(Job("verify", ("pipeline", "verify")))
    with pytest.raises(ConsoleError, match="verify needs a --pop-log"):
        wrong.run()
    cut = launch.DryRun(Waiting("wait", ()))
    failed: list[Exception] = []

    def run_plan() -> None:
        try:
            cut.run()
        except ConsoleError as error:
            failed.append(error)

    thread = threading.Thread(target=run_plan)
    thread.start()
    wait_until(lambda: cut._process is not None, "a process")
    cut.cancel()
    thread.join(30)
    assert failed
