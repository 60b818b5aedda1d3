"""The runs of the pipeline on the screen: one is started, followed and stopped there."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import pytest
from textual.widgets import Input

from console.engines import Database, open_database
from console.errors import ConsoleError, UsageError
from console.features.lake import launch, runs
from console.features.lake import spark as sessions
from console.features.lake.java import INSTALL
from console.features.lake.launch import Job
from console.features.lake.runs import Run, RunFile, RunList, RunOutcome
from console.features.lake.runs_view import size
from console.features.lake.screens import job as jobs
from console.features.lake.screens import open_job
from console.features.lake.screens.job import PipelineScreen
from console.features.lake.screens.runs import RunDialog, RunsScreen
from console.features.lake.verbs import JOBS
from console.rights import Rights
from console.tui.dialogs.dialog import CommandDialog, ConfirmDialog, Menu
from console.tui.dialogs.verbs import VerbsDialog
from console.tui.open_connection import url_options
from console.tui.screens.form import Stage
from console.tui.text import TextView
from console.tui.widgets.field import Form
from console.verbs.verb import Verb
from tests.cli.calls import command
from tests.servers import wait_until
from tests.tui.acting import Acting, acting, make, states
from tests.tui.feeds import queue
from tests.tui.opened import Opened, Running, alone, conn

pytestmark = pytest.mark.slow

KEY = ("prod", "public", "jobs")
PROGRESS = "export: 2 of 4 ranges, 200,000 rows"
AT = datetime(2026, 3, 29, 2, 0, 0, tzinfo=UTC)
DONE = Run(
    id="1",
    verb="archive",
    began_at=AT,
    words=("pipeline", "archive", "jobs", "--lake", "/lake"),
    queue="jobs",
    connection="prod",
    lake="/lake",
    user="ann",
    host="etl01",
    pid=4711,
    progress="delete: 4 of 4 ranges, 400,000 rows",
    ended_at=AT + timedelta(seconds=20),
    status=0,
    result={"done": True, "result": {"exported": 400_000, "bytes": 122_300_000}},
    lines=("plan 7: exported 400,000",),
)
RUNNING = replace(
    DONE, id="2", ended_at=None, status=None, result=None, lines=(), alive=True,
    progress=PROGRESS, progress_rows=200_000, progress_at=AT,
)  # fmt: skip
KILLED = replace(RUNNING, id="3", alive=False)
WRONG = replace(
    DONE, id="4", verb="verify", status=1, result={"pushes": 9, "pops": 8, "lost": 1}, queue=""
)
FAILED = replace(
    DONE, id="5", status=3, result=None, lines=(), error={"what": "[bold]no\x1b[31m", "why": "gone"}
)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of runs for this test, and the stderr of one of them."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    runs.folder().mkdir(parents=True)
    (runs.folder() / "3.err").write_text("Traceback of [bold]somebody\x1b[0m")
    return runs.folder()


@pytest.fixture
def posted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The screen reads no files; it shows the runs that the test gives it."""
    monkeypatch.setattr(RunsScreen, "reload", lambda _: None)


async def shown(console: Opened, *runs: Run) -> RunsScreen:
    """The screen, with these runs."""
    screen = await console.opens(RunsScreen, console.app.run_command, "runs")
    screen.show(RunList(runs))
    await console.pilot.pause()
    return screen


def cells(screen: RunsScreen, id_: str) -> dict[str, str]:
    found = screen.table.cells(id_)
    return {name: cell.text for name, cell in found.items()}


# -- the list


async def test_each_run_has_a_row_and_the_cursor_stays_on_its_run(posted: None) -> None:
    async with alone(connections=[conn()], size=(160, 30)) as console:
        screen = await shown(console, RUNNING, DONE)
        assert "2 runs, 1 running" in console.picture
        first = cells(screen, "2")
        assert (first["outcome"], first["rows"], first["progress"]) == (
            "running",
            "200,000",
            PROGRESS,
        )
        done = cells(screen, "1")
        assert (done["ended"], done["rows"], done["size"], done["rate"], done["took"]) == (
            *("03-29 02:00:20", "400,000", "122.3 MB", "20,000", "20.0 s"),
        )
        assert [size(number) for number in (None, 7, 4_200, 90 * 10**9)] == [
            *("", "7 B", "4.2 kB", "90.0 GB")
        ]
        await console.press("j")
        table = screen.table
        screen.show(RunList((WRONG, RUNNING, DONE), unreadable=2))
        await console.pilot.pause()
        assert table.row == DONE
        assert "2 files cannot be read" in console.picture
        assert cells(screen, "4")["outcome"] == RunOutcome.MISMATCH


async def test_an_empty_list_killed_runs_and_unreadable_runs_are_explained(posted: None) -> None:
    async with alone(connections=[conn()]) as console:
        screen = await shown(console)
        console.shows("No job has been run on this machine yet", ":pipeline archive QUEUE")
        screen.show(RunList((KILLED, FAILED, DONE)))
        await console.pilot.pause()
        assert f"ended without a word; before that: {PROGRESS}" in console.picture
        assert "ended without a word  " in console.picture, "not cut off in the table"
        assert cells(screen, "3")["mark"] == "✖"
        await console.press("j")
        console.shows("[bold]no␛[31m gone", "dbq-console pipeline archive jobs")
        await console.resize(50, 14)
        assert "archive" in console.picture
        screen._failed(ConsoleError("The runs cannot be read.", why="no disk"))
        await console.pilot.pause()
        assert "no disk" in console.picture
        assert len(screen.table.keys) == 3, "what was read stays"
        await console.press("o")
        assert console.is_at(CommandDialog)


async def test_enter_shows_the_complete_result(posted: None) -> None:
    async with alone(connections=[conn()], size=(120, 50)) as console:
        await shown(console, DONE, KILLED)
        await console.press("enter")
        await console.until(lambda: console.is_at(RunDialog))
        console.shows("done (exit 0)", "plan 7: exported", '"exported": 400000', "ann@etl01")
        await console.press("y")
        assert '"bytes": 122300000' in console.app.clipboard
        await console.press("escape", "j", "enter")
        await console.until(lambda: console.is_at(RunDialog))
        await console.pilot.pause()
        console.shows("The same command continues where it stopped", "[bold]somebody␛[0m")


async def test_a_run_is_stopped_only_after_a_typed_confirmation(
    posted: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped: list[str] = []
    monkeypatch.setattr(runs, "stop", lambda run: stopped.append(run.id))
    async with alone(connections=[conn()]) as console:
        await shown(console, RUNNING, DONE)
        await console.press("s", "escape")
        assert console.is_at(RunsScreen)
        await console.press("s")
        assert console.is_at(ConfirmDialog)
        assert PROGRESS in console.picture
        await console.press("y", "enter")
        await console.until(lambda: stopped)
        assert stopped == ["2"]
        await console.press("j", "s")
        assert console.is_at(RunsScreen), "it has ended"


# -- starting a run


def test_a_run_gets_its_connection_and_no_secret_is_on_its_command_line() -> None:
    values = {"lake": "/l", "older": "1h", "retention": "7d", "shared": "yes"}
    named = jobs.confirmed(jobs.job_of("archive", values, conn(rights=Rights.OPERATOR), KEY))
    assert named.words == (
        *("pipeline", "archive", "--yes", "jobs", "--lake=/l", "--older=1h", "--shared"),
        *("--schema", "public", "--rights", "operator", "--profile", "prod", "jobs"),
    )
    assert named.environment == {}
    assert named.command[-len(named.words) :] == [*named.words]

    connection = conn()
    secret = connection.database.url.set(password="Pl4nted")
    database = open_database(secret.render_as_string(hide_password=False), label="prod")
    by_url = replace(connection, database=database, cli_options=url_options(database))
    job = jobs.job_of("verify", {"pop-log": "a b", "left": "0"}, by_url, ("prod", "s", "-odd"))
    assert "Pl4nted" not in f"{job} {job.command}"
    assert "Pl4nted" in job.environ()["DBQ_URL"]
    assert job.words[-2:] == ("--", "-odd")
    assert f"--pop-log={Path('a b').absolute()}" in job.words
    assert "Pl4nted" not in jobs.equivalent_command("archive", {}, by_url, KEY)
    assert jobs.confirmed(replace(job, queue="-odd")).words[2] == "--yes=-odd"
    several = jobs.job_of("replay", {"filter": "error~'no route' id=4"}, conn(), KEY)
    assert several.words[2:4] == ("--filter=error~no route", "--filter=id=4")
    with pytest.raises(UsageError, match="can see a command line"):
        jobs.job_of("rollup", {"lake": "s3://key:secret@bucket/x"}, None, None)
    assert jobs.job_of("rollup", {"lake": "s3://bucket/x"}, None, None).words == (
        *("pipeline", "rollup", "--lake=s3://bucket/x"),
    )
    rollup = jobs.job_of("rollup", {"recordings": "/a '/b c'"}, None, None)
    assert rollup.words[2:] == ("--recordings=/a", "--recordings=/b c")
    expiring = jobs.job_of("expire", {"older": "2y"}, conn(rights=Rights.OPERATOR), KEY)
    assert (expiring.words[2], expiring.words[-1]) == ("--older=2y", "--queue=jobs")
    compacting = jobs.confirmed(jobs.job_of("compact", {"keep": "1d"}, None, None))
    assert compacting.words == ("pipeline", "compact", "--yes", "--keep=1d")


@pytest.mark.parametrize("verb", JOBS, ids=lambda verb: verb.name)
def test_every_field_of_a_jobs_form_is_accepted_by_the_command_line(verb: Verb) -> None:
    """Its command takes what the form makes of the parameters that both have."""
    texts = {
        parameter.name: _TEXTS.get(parameter.name, "yes" if parameter.is_flag else "/x")
        for parameter in verb.parameters
    }
    job = jobs.job_of(verb.name, texts, conn(rights=Rights.OPERATOR), KEY)
    group = command("pipeline")
    assert isinstance(group, click.Group)
    found = group.commands[verb.name]
    with found.make_context(verb.name, list(job.words[2:])) as context:
        given = {parameter.key: context.params[parameter.key] for parameter in verb.parameters}
    assert all(value not in {None, ()} for value in given.values()), given


_TEXTS = {
    **dict.fromkeys(("older", "retention", "keep"), "1h"),
    "connections": "8",
    "filter": "error~no",
    "order": "strict",
    "left": "3",
}


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """The jobs that would have been started; a plan repeats the arguments."""
    found: list[Job] = []

    def start(job: Job) -> str:
        found.append(job)
        return RunFile.begin(runs.folder(), job.verb).id

    class Planned:
        def __init__(self, job: Job) -> None:
            self._job = job

        def run(self) -> list[str]:
            if "--older=9h" in self._job.words:
                raise UsageError("Nothing is so old.", next_step="Say less.")
            return [f"the plan of {' '.join(self._job.words)}"]

        def cancel(self) -> None:
            pass

    monkeypatch.setattr(launch, "start", start)
    monkeypatch.setattr("console.features.lake.screens.job.DryRun", Planned)
    monkeypatch.setattr(sessions, "require_extra", lambda: None)
    return found


def at_stage(console: Running, stage: Stage) -> bool:
    return console.is_at(PipelineScreen) and console.on_top(PipelineScreen).stage is stage


async def test_a_run_is_planned_confirmed_by_name_and_then_listed(started: list[Job]) -> None:
    async with alone(connections=[conn(rights=Rights.OPERATOR)]) as console:
        console.feed.give(queue("jobs"))
        open_job(console.app.context, "archive", KEY, lake="/srv/lake")
        await console.until(lambda: at_stage(console, Stage.FORM))
        assert "drain its archive" in console.picture
        filled = console.app.screen.query_one(Form)
        filled.fields[1].value = "9h"
        await console.press("enter")
        await console.until(lambda: "Nothing is so old" in console.picture)
        assert at_stage(console, Stage.FORM)
        filled.fields[1].value = "no time"
        await console.press("enter")
        assert at_stage(console, Stage.FORM)
        filled.fields[1].value = ""
        await console.press("ctrl+o")
        equivalent_command = "pipeline archive --lake=/srv/lake --schema public --profile prod jobs"
        assert console.app.clipboard == f"dbq-console {equivalent_command}"
        await console.press("escape", "enter")
        await console.until(lambda: at_stage(console, Stage.PLAN))
        assert "the plan of pipeline archive --dry-run --lake=/srv/lake" in console.picture
        await console.press("y", "enter")
        assert "'y' does not match" in console.picture
        assert not started
        confirm = console.app.screen.query_one("#confirm", Input)
        confirm.value = "jobs"
        console.feed.fail()
        await console.pilot.pause()
        await console.press("enter")
        assert "no new figures" in console.picture
        assert not started
        console.feed.give(queue("jobs"))
        await console.pilot.pause()
        screen = console.on_top(PipelineScreen)
        screen.confirm("jobs")
        screen.confirm("jobs")
        await console.until(lambda: console.is_at(RunsScreen))
        assert [job.words[:4] for job in started] == [("pipeline", "archive", "--yes", "jobs")]
        listed = console.on_top(RunsScreen)
        await console.until(lambda: listed.table.row is not None)
        await console.press("escape")
        assert not console.is_at(PipelineScreen)


async def test_a_job_that_deletes_nothing_needs_no_name_and_escape_goes_back(
    started: list[Job],
) -> None:
    async with alone() as console:
        console.app.run_command("runs")
        await console.press("n")
        await console.until(lambda: at_stage(console, Stage.FORM))
        await console.press("enter")
        await console.until(lambda: at_stage(console, Stage.PLAN))
        assert "It deletes nothing" in " ".join(console.picture.split())
        await console.press("escape")
        assert at_stage(console, Stage.FORM)
        await console.press("enter")
        await console.until(lambda: at_stage(console, Stage.PLAN))
        await console.press("y", "enter")
        await console.until(lambda: console.is_at(RunsScreen))
        assert [job.words for job in started] == [("pipeline", "rollup")]


def refusal(console: Opened) -> str:
    return console.app.screen.query_one("#problem", TextView).plain_text


async def test_a_read_only_connection_starts_no_job_that_changes_a_queue(
    started: list[Job],
) -> None:
    async with alone(connections=[conn(rights=Rights.READ_ONLY)]) as console:
        for verb in ("archive", "replay"):
            open_job(console.app.context, verb, KEY)
            await console.pilot.pause()
            assert "needs the right operator" in refusal(console)
            await console.press("enter", "enter", "escape")
        open_job(console.app.context, "verify", KEY)
        await console.until(lambda: at_stage(console, Stage.FORM))
        await console.press("escape")
        open_job(console.app.context, "verify", ("nowhere", "public", "x"))
        await console.pilot.pause()
        assert "no such connection" in refusal(console)
        assert not started


async def test_without_the_extra_the_screen_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sessions, "find_spec", lambda _: None)
    async with alone() as console:
        open_job(console.app.context, "rollup")
        await console.pilot.pause()
        assert INSTALL in refusal(console)
        assert at_stage(console, Stage.NOTHING)


def test_a_typed_password_cannot_be_passed_to_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    class Typed:
        is_typed = True

    one: Any = replace(conn(), credentials=Typed())  # type: ignore[arg-type]
    assert "its password is typed" in jobs.why_no_job("verify", one)
    assert jobs.why_no_job("rollup", one) == ""


@pytest.mark.long
async def test_a_real_run_goes_from_the_dialog_to_its_result(
    database: Database, tmp_path: Path
) -> None:
    made = make(database, "jobs", "fifo", {"archive_at_pop": "on"})
    with database.transaction("pop") as connection:
        connection.exec_driver_sql("SELECT count(*) FROM public.jobs_pop_many(5)")
    before = states(database, made)
    async with acting(database, "jobs", rights=Rights.OPERATOR) as console:
        console.app.open_actions(console.key("jobs"))
        await console.until(lambda: console.is_at(VerbsDialog))
        await console.until(lambda: bool(console.dialog.choices))
        names = [choice.verb for choice in console.dialog.choices]
        assert "to lake" in names
        console.dialog.query_one(Menu).highlighted = names.index("to lake")
        await console.pilot.press("enter")
        await form(console, tmp_path / "lake")
        await console.until(lambda: console.is_at(RunsScreen))

    def ended() -> bool:
        return all(run.status is not None for run in runs.read(runs.folder()).runs)

    # The console has ended; the run continues.
    wait_until(ended, "the end of the run")
    (run,) = runs.read(runs.folder()).runs
    assert (run.outcome, run.rows) == (RunOutcome.DONE, 5), run
    assert states(database, made) == before
    assert [*(tmp_path / "lake").rglob("*.parquet")]


async def form(console: Acting, lake: Path) -> None:
    await console.until(lambda: at_stage(console, Stage.FORM))
    filled = console.app.screen.query_one(Form)
    filled.fields[0].value = str(lake)
    await console.press("enter")
    await console.until(lambda: at_stage(console, Stage.PLAN))
    assert "5 rows into" in console.picture
    console.app.screen.query_one("#confirm", Input).value = "jobs"
    await console.press("enter")
