"""What opens when nothing is configured."""

from pathlib import Path

from console.tui import ConsoleApp
from tests.tui.opened import picture


async def test_it_shows_how_to_get_something_to_look_at() -> None:
    app = ConsoleApp(config_path=Path("/etc/dbq/[x].toml"))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        shown = picture(app)
        assert "dbq-console --url postgresql+psycopg://user@host:5432/database" in shown
        assert "dbq-console demo" in shown
        assert "/etc/dbq/[x].toml" in shown
        await pilot.press("escape", "q", "question_mark", "escape", "r", "j")
        assert app.is_running
        await pilot.press("ctrl+q")
