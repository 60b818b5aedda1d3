"""Verbs over a fleet: an answer for each connection, whatever becomes of the others."""

from pathlib import Path

import pytest
from sqlalchemy import make_url

from tests.cli.calls import Console, call
from tests.cli.conftest import Install
from tests.servers import connect


@pytest.fixture
def fleet(console: Console, tmp_path: Path) -> dict[str, str]:
    """The configuration of one: twice the same server, and a host where nobody listens."""
    at = make_url(console.url)
    url = f"postgresql+psycopg://{at.username}@{{host}}/{at.database}"
    hosts = [f"127.0.0.1:{at.port}", f"localhost:{at.port}", "127.0.0.1:1"]
    file = tmp_path / "config.toml"
    file.write_text(f'[fleets.shops]\nurl = "{url}"\npassword = "${{env:PW}}"\nhosts = {hosts}\n')
    return {"DBQ_CONFIG": str(file), "PW": str(at.password)}


def test_each_connection_is_answered_for(
    console: Console, install: Install, fleet: dict[str, str]
) -> None:
    queue = install("claim")
    console.done("push", queue, "one")
    words = ("status", queue, "--fleet", "shops", "--json")
    answer = call(*words, environment=fleet)
    assert answer.status == 3
    first, second, dead = answer.json["connections"]
    for one in (first, second):
        assert one["exit"] == 0
        assert [(row["queue"], row["ready"]) for row in one["queues"]] == [(queue, 1)]
    assert [one["profile"].partition("/")[0] for one in (first, second, dead)] == ["shops"] * 3
    assert dead["exit"] == 3
    assert "refused" in dead["error"]["why"]
    for verb, statuses in (
        (("check", queue, "--max-depth", "0"), [1, 1, 3]),
        (("doctor", queue, "--idle-for", "0s"), [0, 0, 3]),
    ):
        answer = call(*verb, "--group", "shops", "--json", environment=fleet)
        assert [one["exit"] for one in answer.json["connections"]] == statuses
        assert answer.status == 3
    text = call(*words[:-1], environment=fleet)
    assert text.text.count(f"  {queue} ") == 2
    assert "shops/127.0.0.1:1:\n  " in text.text


@pytest.mark.long
def test_what_the_doctor_proposes_names_the_connection(
    console: Console, install: Install, fleet: dict[str, str]
) -> None:
    """Of one connection alone whoever asked has named it."""
    ring = install("ring", "size=50")
    console.done("push", ring, "-", "--lines", stdin=b"a\nb\nc\n")
    with connect(console.url) as connection:
        connection.execute("BEGIN")
        connection.execute(f'SELECT * FROM "{ring}_pop"()'.encode())
        connection.execute("ROLLBACK")
    words = ("doctor", "--idle-for", "0s", "--json")
    answer = call(*words, "--fleet", "shops", environment=fleet)
    *asked, dead = answer.json["connections"]
    for one in asked:
        found = [finding for queue in one["queues"] for finding in queue["findings"]]
        told = [finding["repair"]["command"] for finding in found if finding["repair"]]
        assert told
        assert all(text.endswith(f" --profile {one['profile']}") for text in told), told
    assert "error" in dead
    assert "--profile" not in console("doctor", "--idle-for", "0s").text


def test_wrong_use(fleet: dict[str, str]) -> None:
    for words in (
        ("status", "--watch", "--fleet", "shops"),
        ("check", "--plugin", "--group", "shops"),
        ("doctor", "x", "--fix", "--fleet", "shops"),
        ("status", "--fleet", "shops", "--group", "shops"),
        ("status", "--fleet", "shops", "--profile", "a"),
        ("status", "--fleet", "none"),
    ):
        answer = call(*words, environment=fleet)
        assert (answer.status, answer.out) == (2, b"")
