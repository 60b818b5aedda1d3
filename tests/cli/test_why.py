"""timeline, why, report --since: what they read, and what they say of it."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from console.engines import open_database
from console.features.history import segments
from console.features.history.segments import SAMPLES
from tests.cli.calls import Console
from tests.cli.conftest import Install
from tests.cli.test_history import write_forecast

_NOWHERE = "postgresql+psycopg://u@127.0.0.1:1/x"


def record(root: Path, url: str, name: str) -> None:
    """Three hours until now, as a recorder of that connection: 20 minutes ago pops stopped."""
    now = datetime.now(UTC)
    begin = now - timedelta(hours=3)
    rows = []
    for minute in range(180):
        stopped = max(0, minute - 160)
        rows.append(
            {
                "at": begin + timedelta(minutes=minute),
                "schema": "public",
                "queue": name,
                "design": "fifo",
                "ready": 5 + 600 * stopped,
                "age_seconds": 0.5 + 60 * stopped,
                "push_per_second": 10.0,
                "pop_per_second": 0.0 if stopped else 10.0,
                "next_seconds": 60.0,
            }
        )
    segment = segments.Segment(root, open_database(url).label, begin)
    segment.write(SAMPLES, rows)
    segment.close()


def test_a_pause_explains_why_nothing_is_popped(
    console: Console, install: Install, tmp_path: Path
) -> None:
    name = install("fifo")
    record(tmp_path, console.url, name)
    where = ("--recordings", str(tmp_path))
    console.done("note", "backup begins", name)
    before = console.done("why", name, *where, "--json").json
    assert "paused" not in {cause["code"] for cause in before["causes"]}
    console.done("pause", name, "--reason", "deploying", "--yes", name)
    found = console.done("why", name, *where, "--json").json
    assert found["usual"] == "the hour before"
    assert {"ready", "age_seconds", "pop_per_second"} <= {one["figure"] for one in found["changes"]}
    first = found["causes"][0]
    assert (first["code"], list(first)) == (
        "paused",
        ["code", "what", "at", "evidence", "disproof", "follows"],
    )
    assert "deploying" in first["evidence"][0]
    text = console.done("why", name, *where).text
    assert "1. the queue is paused" in text
    assert "pop/s fell: usually 10.0, now 0.0" in text
    quiet = datetime.now(UTC) - timedelta(minutes=40)
    then = console.done("why", name, *where, "--at", quiet.isoformat(), "--json").json
    assert (then["causes"], then["verdict"][:9]) == ([], "no figure")
    console.done("resume", name, "--yes", name)


def test_a_timeline_has_the_audit_beside_the_recording(
    console: Console, install: Install, tmp_path: Path
) -> None:
    name = install("fifo")
    record(tmp_path, console.url, name)
    console.done("note", "deployed 1.4", name)
    where = ("--recordings", str(tmp_path))
    found = console.done("timeline", name, *where, "--json").json
    seen = [(one["kind"], one["name"]) for one in found["events"]]
    assert ("action", "install") in seen
    assert ("figure", "pop/s") in seen
    assert found["events"][-1]["words"] == "deployed 1.4"
    assert found["unread"] == ""
    times = [one["at"] for one in found["events"]]
    assert times == sorted(times)
    assert "deployed 1.4" in console.done("timeline", name, *where).text
    console("timeline", "no such queue", *where).failed(2)


def test_without_its_database_the_recording_tells(
    console: Console, install: Install, tmp_path: Path
) -> None:
    record(tmp_path, _NOWHERE, "orders")
    where = ("--url", _NOWHERE, "--recordings", str(tmp_path))
    found = console.done("why", "orders", *where, "--json").json
    assert "pop_per_second" in {one["figure"] for one in found["changes"]}
    assert found["unread"].startswith("the audit was not read")
    console("why", "mail", "--url", _NOWHERE, "--recordings", str(tmp_path / "none")).failed(
        1, "Nothing was recorded of 'mail'"
    )


def test_a_handover_of_all_queues_and_a_report_of_one(
    console: Console, install: Install, tmp_path: Path
) -> None:
    name = install("fifo")
    record(tmp_path, console.url, name)
    console.done("note", "took *over*", name)
    console.done("protect", name, "--reason", "audit", "--yes")
    where = ("--since", "8h", "--recordings", str(tmp_path))
    found = console.done("report", *where, "--json").json
    (one,) = found["connections"]
    assert any(name == decision["queue"] for decision in one["decisions"])
    assert any(action["words"] == "took *over*" for action in one["actions"])
    text = console.done("report", *where).text
    assert text.startswith("# Handover: ")
    assert "took \\*over\\*" in text
    assert f"| public.{name} | 11,405 | 19 min | 10.0 | 0.0 | · |" in text
    assert "protected by" in text
    only = console.done("report", "no such queue", *where).text
    assert name not in only.replace("no such queue", "")
    assert console.done("report", name).text.startswith("# ")
    assert console("report").status == 2
    console.done("unprotect", name, "--yes", name)


def test_the_forecast_is_usual_and_what_a_handover_expects(
    console: Console, install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    name = install("fifo")
    write_forecast(console, name, 3_600, 3_600)
    record(tmp_path, console.url, name)
    where = ("--recordings", str(tmp_path))
    found = console.done("why", name, *where, "--json").json
    of_rates = [one for one in found["changes"] if one["figure"] == "push_per_second"]
    assert [(one["basis"], one["usual"]) for one in of_rates] == [("the forecast's band", 1.0)]
    text = console.done("report", "--since", "8h", *where).text
    expected = "in the 8 hours from the next full one: 28,800 pushes (at most 28,800), 28,800 pops"
    assert f"- **public.{name}**: {expected}" in text
