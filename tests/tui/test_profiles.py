"""From profiles to screens: what is configured reaches the samplers, the board and the clock."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from console import tui
from console.catalog import installed_queue
from console.config import DISPLAY_ZONE, load
from console.designs import DESIGNS
from console.rights import Login
from console.tui import ConsoleApp, open_connection
from console.tui.context import Setup

TWO = """
stuck_after = "10m"
[profiles.a]
url = "postgresql+psycopg://u@127.0.0.1:1/a"
interval = "3s"
production = true
[profiles.a.queues.slow]
stuck_after = "2h"
depth = { critical = 7 }
[profiles.b]
url = "mssql+pyodbc://u@127.0.0.1:1/b"
"""
CAN_WRITE = Login(*[name == "writes" for name in Login.__dataclass_fields__])

Opened = Callable[[str], dict[str, Any]]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Opened:
    """What the application would be made with."""

    def open_it(text: str) -> dict[str, Any]:
        file = tmp_path / "config.toml"
        file.write_text(text)
        given: dict[str, Any] = {}

        def app(feeds: object, setup: Setup) -> ConsoleApp:
            given.update(vars(setup), feeds=feeds)
            return ConsoleApp()

        monkeypatch.setattr(tui, "require_terminal", lambda: None)
        monkeypatch.setattr(tui, "_run", lambda _: None)
        monkeypatch.setattr(tui, "ConsoleApp", app)
        configuration = load({"DBQ_CONFIG": str(file), "HOME": str(tmp_path)})
        zone = configuration.defaults[DISPLAY_ZONE]
        tui.run_profiles(configuration.profiles(), config_path=file, zone=zone)
        return given

    return open_it


def test_each_queue_has_the_thresholds_of_its_own_profile(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    samplers: list[dict[str, Any]] = []

    class Recorded:
        def __init__(self, *_: object, **options: Any) -> None:
            samplers.append(options)

    monkeypatch.setattr(open_connection, "Sampler", Recorded)
    given = opened(TWO)
    queues = [installed_queue("public", name, DESIGNS["claim"], {}) for name in ("slow", "x")]
    stuck = [[one["stuck_after_seconds"](queue) for queue in queues] for one in samplers]
    assert stuck == [[7200.0, 600.0], [600.0, 600.0]]
    assert [one["interval_seconds"] for one in samplers] == [3.0, 1.0]
    depths = [[given["thresholds"][n](q.name).depth.critical for q in queues] for n in "ab"]
    assert depths == [[7, None], [None, None]]
    assert given["production"] == {"a"}


def test_who_enforces_the_rights_depends_on_the_engine(opened: Opened) -> None:
    rights = opened(TWO)["rights"]
    assert rights["a"](None) == rights["b"](None) == "read-only"
    assert rights["a"](CAN_WRITE) == "read-only by this session only"
    assert rights["b"](CAN_WRITE) == "read-only, not enforced by the server"


@pytest.mark.parametrize(
    ("top", "a", "b", "shown"),
    [
        ("Asia/Tokyo", "", "", "Asia/Tokyo"),
        ("Asia/Tokyo", "Asia/Aden", "Asia/Aden", "Asia/Aden"),
        ("Asia/Tokyo", "Asia/Aden", "", "Asia/Tokyo"),
        ("Asia/Tokyo", "Asia/Aden", "Asia/Dubai", "Asia/Tokyo"),
    ],
)
def test_the_clocks_zone_is_that_of_all_profiles_or_else_the_default(
    opened: Opened, top: str, a: str, b: str, shown: str
) -> None:
    lines = [f'display_zone = "{top}"']
    for name, zone in (("a", a), ("b", b)):
        lines += [f"[profiles.{name}]", f'url = "postgresql+psycopg://u@127.0.0.1:1/{name}"']
        lines += [f'display_zone = "{zone}"'] if zone else []
    assert str(opened("\n".join(lines))["zone"]) == shown
