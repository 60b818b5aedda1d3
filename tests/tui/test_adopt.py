"""A table becomes a queue: the list, the mapping with a preview; all of it on a real server."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from console.catalog import find
from console.catalog.relations import Column
from console.designs import DESIGNS
from console.engines import Database
from console.errors import TooSlowError
from console.features.presets.adopt import CandidateQueue, CandidateTable, candidate
from console.features.presets.designs import own
from console.features.presets.screens import open_adopt
from console.features.presets.screens.adopt import AdoptScreen, Tables
from console.features.presets.verbs import ADOPT
from console.rights import Rights
from console.tui import jobs
from console.tui.open_connection import OpenConnection
from console.tui.screens.form import Stage
from console.tui.widgets.field import Field
from console.verbs.verb import texts_from_words, words_from_texts
from tests.cli.own_presets import TABLE, User, run
from tests.tui.opened import Opened, alone, conn

pytestmark = pytest.mark.slow

JOBS = CandidateTable("public", "jobs[bold]", 12)
COLUMNS = (
    Column("job_id", "bigint"),
    Column("created_at", "timestamptz"),
    Column("locked_at", "timestamptz"),
    Column("body", "text"),
)


@pytest.fixture
def no_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """No job starts; the test posts what a job would find."""
    monkeypatch.setattr(jobs, "start_job", lambda *_: None)


@pytest.mark.usefixtures("no_jobs")
async def test_the_mapping_shows_a_preview_missing_roles_and_missing_rights() -> None:
    async with alone(connections=[conn(rights=Rights.OPERATOR)], size=(160, 48)) as console:
        screen = await console.opens(AdoptScreen, open_adopt, console.app.context, "prod")
        screen.show_tables(Tables((JOBS, CandidateTable("sales", "mail", None))))
        await console.pilot.pause()
        assert "jobs[bold]" in console.picture
        table = screen.table
        assert table.cells(table.keys[1])["rows"].text == "?"
        await console.press("slash", "m", "a", "enter")
        assert len(table.keys) < 2
        await console.press("escape")
        assert len(table.keys) == 2
        await console.press("g", "enter")
        screen.show_columns(COLUMNS)
        await console.pilot.pause()
        assert screen.form.roles == {
            "id": "job_id",
            "pushed_at": "created_at",
            "claimed_at": "locked_at",
            "payload": "body",
        }
        assert "without it: no errors" in console.picture
        queue = candidate(JOBS, DESIGNS["claim"], screen.form.roles)
        error = TooSlowError("Could not look.", why="It took too long.")
        screen.show_preview(CandidateQueue(queue, errors=(error,)))
        await console.pilot.pause()
        console.shows(
            "It took too long.", "no requeue: it was adopted without a column for the role error"
        )
        # A missing right is reported, and no confirmation is requested.
        await console.press("enter")
        assert screen.stage is Stage.FORM
        assert "needs the right admin" in console.picture
        # A role that the design requires is demanded before a plan is made.
        await console.press("right")
        assert screen.form.design.name == "status"
        assert "Still missing: status" in console.picture
        assert screen.query_one("#field-status", Field).has_error
        await console.press("enter")
        assert screen.stage is Stage.FORM
        await console.press("escape", "escape")
        assert not console.is_at(AdoptScreen)


@pytest.mark.usefixtures("no_jobs")
async def test_the_adopt_form_takes_a_command_lines_values_and_returns_them() -> None:
    async with alone(connections=[conn()], size=(160, 48)) as console:
        screen = await console.opens(
            AdoptScreen,
            open_adopt,
            console.app.context,
            "prod",
            name=JOBS.name,
            design="fifo",
            map="id=body",
        )
        screen.show_tables(Tables((JOBS,)))
        screen.show_columns(COLUMNS)
        await console.pilot.pause()
        assert screen.form.design.name == "fifo"
        assert screen.form.roles["id"] == "body"
        read = texts_from_words(ADOPT, words_from_texts(ADOPT, screen.form.values))
        assert read == screen.form.values
        assert read["name"] == JOBS.name


async def test_a_table_chosen_from_the_list_is_adopted(database: Database) -> None:
    with database.transaction("make a table") as connection:
        connection.execute(
            text(
                "CREATE TABLE public.jobs (job_id bigserial PRIMARY KEY, created timestamptz "
                "DEFAULT now(), started timestamptz, body text, last_error text)"
            )
        )
        connection.execute(text("INSERT INTO public.jobs (body) VALUES ('card 4111 [b]')"))
    here = OpenConnection("prod", database, Rights.ADMIN)
    async with alone(connections=[here], size=(160, 48)) as console:
        opened_queues: list[object] = []
        console.app.open_queue = lambda *key: opened_queues.append(key)  # type: ignore[method-assign]
        open_adopt(console.app.context, "prod")
        await console.until(lambda: "jobs" in console.picture)
        await console.press("enter")
        await console.until(lambda: "card 4111 [b]" in console.picture)
        assert "ready 1" in console.picture
        await console.press("enter")
        screen = console.on_top(AdoptScreen)
        assert screen.stage is Stage.PLAN
        await console.press("n", "enter")
        assert "'n' does not match" in console.picture
        assert not console.app.context.action_runs.all
        console.app.screen.query_one("#confirm").value = "y"  # type: ignore[attr-defined]
        await console.press("enter")
        await console.until(lambda: opened_queues)
        assert opened_queues == [(("prod", "public", "jobs"),)]
    with database.transaction("look", read_only=True) as connection:
        queue = find(connection, "jobs")
    assert (queue.design.name, queue.roles["error"]) == ("claim", "last_error")


@pytest.fixture
def crates(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[User]:
    """A user with a preset file that is not trusted yet, and its table."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    run(database_url, TABLE)
    own.forget_read()
    yield User(tmp_path, database_url).writes()
    monkeypatch.undo()
    own.forget_read()


async def chosen_crates(console: Opened) -> AdoptScreen:
    open_adopt(console.app.context, "prod")
    await console.until(lambda: "queues of crate" in console.picture)
    await console.press("slash", *"crat", "enter", "enter")
    screen = console.on_top(AdoptScreen)
    await console.until(lambda: screen.stage is Stage.FORM)
    return screen


async def test_a_users_own_preset_adopts_a_table_once_it_is_trusted(
    crates: User, database: Database
) -> None:
    here = OpenConnection("prod", database, Rights.ADMIN)
    async with alone(connections=[here]) as console:
        screen = await chosen_crates(console)
        await console.until(lambda: "use a login that only reads" in console.picture)
        await console.press("enter")
        assert screen.stage is Stage.FORM
        text_shown = " ".join(console.picture.split())
        assert "Nothing can be adopted with the preset 'crate'" in text_shown
        assert "you have not trusted it in its present form" in text_shown
        assert "its first messages" not in text_shown
    crates.trusts()
    own.forget_read()
    async with alone(connections=[here]) as console:
        opened_queues: list[object] = []
        console.app.open_queue = lambda *key: opened_queues.append(key)  # type: ignore[method-assign]
        screen = await chosen_crates(console)
        await console.until(lambda: "ready 2" in console.picture)
        await console.press("down", "right")
        await console.until(lambda: "ready 1" in console.picture)
        assert (screen.form.part, screen.form.called) == ("a", "a")
        await console.press("down", "ctrl+u", *"lane_a", "enter")
        assert screen.stage is Stage.PLAN
        await console.press("y", "enter")
        await console.until(lambda: opened_queues)
    with database.transaction("look", read_only=True) as connection:
        queue = find(connection, "lane_a")
    assert (queue.design.name, queue.table, queue.part) == ("crate", "crates", "a")
    assert queue.options["sha256"] == own.every()[0].sha256
