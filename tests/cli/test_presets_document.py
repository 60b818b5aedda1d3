"""The example of `dbq-console help presets`, run exactly as its text has it."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from console.help import topic
from tests.cli.calls import Answer, Console
from tests.servers import Server, connect, fresh_database

ROWS = """
INSERT INTO parcel_jobs (lane, state, body, tries, run_at, worker, taken_at, ended_at, last_error)
VALUES
    ('mail', 'new', '{"kind": "hello"}', 0, NULL, NULL, NULL, NULL, NULL),
    ('mail', 'new', '{}', 0, now() + interval '1 day', NULL, NULL, NULL, NULL),
    ('mail', 'taken', '{}', 1, NULL, 'worker 1', now() - interval '1 h', NULL, NULL),
    ('mail', 'failed', '{"kind": "hello"}', 3, NULL, 'worker 1', now(), now(), 'no host 7'),
    ('print', 'failed', '{}', 3, NULL, 'worker 2', now(), now(), 'no paper'),
    ('print', 'done', '{}', 1, NULL, 'worker 2', now(), now(), NULL)
"""


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", topic("presets").text, re.M | re.S)


@pytest.fixture
def user(own_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Console]:
    """A user with a separate configuration, on a server where roles can be created."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with fresh_database(own_server.url) as url:
        yield Console(url)


def test_the_example_does_what_the_page_says(user: Console, tmp_path: Path) -> None:
    table, preset = blocks("sql")
    (calls,) = blocks("sh")
    folder = tmp_path / "dbq-console" / "presets"
    folder.mkdir(parents=True)
    (folder / "parcel.sql").write_text(preset)
    answers: dict[str, Answer] = {}
    with connect(user.url) as connection:
        connection.execute(table.encode())
        connection.execute(ROWS.encode())
        for line in calls.splitlines():
            words = shlex.split(line)
            if words[0] == "psql":
                connection.execute(words[words.index("-c") + 1].encode())
            elif "|" in words:
                connection.execute(user.done(*words[1 : words.index("|")]).out)
            else:
                answers[" ".join(words[1:3])] = user.done(*words[1:])
        left = connection.execute(
            "SELECT lane, tries, last_error FROM parcel_jobs WHERE state = 'new' ORDER BY id"
        ).fetchall()
        (due,) = connection.execute(
            "SELECT count(*) FROM parcel_jobs WHERE state = 'new' AND run_at <= now()"
        ).fetchall()
    assert "You have not trusted it" in answers["preset list"].text
    assert "No problems." in answers["preset check"].text
    assert (
        "requeue sets: state, tries, run_at, last_error, ended_at" in answers["preset trust"].text
    )
    assert "adopt --preset parcel" in answers["discover"].text
    found = user.done("status", "parcels", "--json").json["queues"][0]
    assert answers["messages parcels"].text.count("no host 7") == 1
    figures = ("ready", "scheduled", "claimed", "stuck", "errors", "done")
    assert [found[figure] for figure in figures] == [3, 1, 1, 1, 0, 1]
    assert left == [("mail", 0, None), ("mail", 0, None), ("mail", 0, None), ("print", 0, None)]
    assert due == (2,)
    mail = user.done("status", "mail", "--json").json["queues"][0]
    assert [mail[figure] for figure in figures] == [2, 1, 1, 1, 0, 0]
    user("release", "parcels", "--yes").failed(4, "Parcel takes back")
