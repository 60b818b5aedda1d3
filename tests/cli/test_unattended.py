"""unattended, doctor --unattended, and runbooks, as an operator meets them."""

from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest

from console.catalog import end_lease, take_lease
from console.catalog.audit import prepare_decisions
from console.engines import open_database
from console.features.history.segments import FINDINGS, Segment
from console.features.unattended import policy
from tests.cli.calls import Answer, Console, call
from tests.cli.conftest import Install
from tests.servers import connect

POLICY = """
[unattended]
orphans = "always"
[runbooks]
orphan = "https://wiki.example/orphans"
"""


def _orphaned(console: Console, name: str) -> psycopg.Connection:
    """A ring with two messages whose numbers were consumed."""
    console.done("push", name, "-", "--lines", stdin=b"a\nb\n")
    connection = connect(console.url)
    connection.execute(f"SELECT nextval('\"{name}_pop_seq\"') FROM generate_series(1, 2)")
    return connection


def test_doctor_unattended_repairs_what_the_policy_allows(
    console: Console, install: Install, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "AGAIN_SECONDS", 0.0)
    name = install("ring", "size=20")
    with _orphaned(console, name):
        pass

    def run(*words: str) -> Answer:
        variables = {"DBQ_URL": console.url, "XDG_CONFIG_HOME": str(tmp_path)}
        return call(*words, environment=variables)

    seen = run("doctor", name, "--unattended", "--idle-for", "0s")
    assert seen.status == 1, "the policy allows nothing"
    assert "repaired" not in seen.err
    file.write_text(POLICY)
    database = open_database(console.url)
    with closing(database), database.transaction("take the lease") as connection:
        prepare_decisions(connection)
        take_lease(connection, "unattended", "another one", 600.0)
    busy = run("doctor", name, "--unattended", "--idle-for", "0s")
    assert busy.status == 1, "it is not repaired yet"
    assert "that is done by another one" in busy.err
    with closing(database), database.transaction("give the lease back") as connection:
        end_lease(connection, "unattended", "another one")
    found = run("doctor", name, "--idle-for", "0s", "--json")
    (orphan,) = [one for one in found.json["queues"][0]["findings"] if one["code"] == "orphan"]
    assert orphan["runbook"] == "https://wiki.example/orphans"
    report = run("report", name, "--idle-for", "0s")
    assert "- Runbook: https://wiki.example/orphans" in report.text
    text = run("doctor", name, "--idle-for", "0s").text
    assert "  runbook: https://wiki.example/orphans\n" in text
    done = run("doctor", name, "--unattended", "--idle-for", "0s", "--json")
    assert done.status == 0
    assert done.json["repairs"] == [f"public.{name}: orphan: park 2 orphans"]
    codes = [one["code"] for one in done.json["queues"][0]["findings"]]
    assert codes == ["repaired_unattended"]
    (action, *_) = console("audit", name, "--json").json["actions"]
    assert action["operator"].startswith("unattended ")
    (row,) = [
        one for one in run("unattended", name, "--json").json["queues"] if one["kind"] == "orphans"
    ]
    assert (row["policy"], row["now"], row["rows_last_hour"]) == ("always", "allowed", 2)
    listed = run("unattended", name)
    assert 'orphans = "off", "always"' in listed.text
    assert "19 repairs, 4,998 rows" in listed.text
    console.done("protect", name, "--reason", "audit", "--yes")
    held = run("unattended", name).text
    assert "left to a person: protected by" in held


def test_wrong_options_are_refused(console: Console, install: Install) -> None:
    name = install("fifo")
    console("doctor", name, "--unattended", "--fix", "--yes", name).failed(
        2, "--unattended and --fix exclude each other"
    )
    console("unattended", "--dry-run").failed(2, "--since and --dry-run go together")
    console("doctor", name, "--unattended", "--rights", "read-only").failed(4)


def test_the_past_is_judged_by_the_policy_of_the_recorded_connection(
    file: Path, tmp_path: Path
) -> None:
    """No connection is given: its recordings name it, and the configuration has it."""
    now, root = datetime.now(UTC), tmp_path / "recordings"
    segment = Segment(root, "shop", now)
    of = {"schema": "public", "queue": "jobs", "summary": "21 orphans: 507-527"}
    found = [{**of, "at": now - timedelta(minutes=n), "code": "orphan"} for n in (9, 8)]
    segment.write(FINDINGS, [*found, {**of, "at": now - timedelta(minutes=7), "code": None}])
    segment.leave()
    past = ("unattended", "--since", "1h", "--dry-run", "--recordings", str(root))

    def ended() -> str:
        answer = call(*past, environment={"XDG_CONFIG_HOME": str(tmp_path)})
        assert answer.status == 0, answer.err
        return answer.text.splitlines()[-1]

    policy = '[unattended]\norphans = "always"\n'
    file.write_text(policy)
    assert ended() == (
        "1 finding: 1 would have been repaired automatically, and a person not woken for 1 of them."
    )
    file.write_text(
        policy + '[profiles.shop]\nurl = "postgresql://db/shop"\nunattended.orphans = "off"\n'
    )
    assert ended() == "Nothing was recorded in that time that the policy would repair."


def test_nothing_recorded_is_said(tmp_path: Path) -> None:
    answer = call("unattended", "--since", "1d", "--dry-run", "--recordings", str(tmp_path))
    assert answer.status != 0
    assert "Nothing is recorded yet" in answer.err


def test_a_runbook_of_no_finding_is_a_mistake(file: Path, tmp_path: Path) -> None:
    file.write_text('[runbooks]\norphans = "x"\n')
    call("config", "validate", environment={"XDG_CONFIG_HOME": str(tmp_path)}).failed(
        2, 'runbooks.orphans is no finding; did you mean "orphan"?'
    )
