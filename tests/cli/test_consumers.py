"""`consumers`: for a person and as one stable object; who has left, from what was recorded."""

from contextlib import closing
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
from psycopg.sql import SQL, Identifier
from sqlalchemy import make_url

from console.catalog import installed_queue
from console.designs import design
from console.monitor.consumers import Consumer, Consumers, rows
from console.monitor.recording.recorder import Recorder
from console.monitor.recording.segments import CONSUMERS
from tests.cli.calls import Console
from tests.cli.conftest import Install

FIELDS = [
    *("connection", "samples", "pop_per_second", "queue", "schema", "design", "at", "consumers"),
    *("missing", "gone", "recorded"),
]


@pytest.mark.parametrize("of", ["claim", "fifo"])
def test_for_a_person_and_as_one_object(
    console: Console, install: Install, tmp_path: Path, of: str
) -> None:
    name = install(of)
    console.done("push", name, "-", "--lines", stdin=b"one\ntwo\nthree\n")
    words = make_url(console.url).translate_connect_args(username="user", database="dbname")
    here = ["--recordings", str(tmp_path)]
    with closing(psycopg.connect(**words, application_name="shop\x1b", autocommit=True)) as shop:
        shop.execute("SET application_name = 'night shift'")
        shop.execute(SQL("SELECT * FROM {}()").format(Identifier(f"{name}_pop")))
        found = console.done("consumers", name, "--seconds", "2", "--json", *here).json
        text = console.done("consumers", name, "--seconds", "0", *here).text
    assert list(found) == FIELDS
    assert found["samples"] > 1
    (one,) = [one for one in found["consumers"] if one["name"] == "night shift"]
    assert set(one) == {field.name for field in fields(Consumer)}
    assert (one["does"], one["sessions"]) == (["pop"], 1)
    claims = 1 if of == "claim" else None
    assert (one["claims"], one["last_pop"] is None) == (claims, of == "fifo")
    assert ("last_pop" in one["unknown"]) == (of == "fifo")
    assert "night shift  pops" in text
    assert ("? last pop, messages a second, claims: a pop of fifo ends" in text) == (of == "fifo")
    assert "Gone: ? (nothing is recorded" in text
    assert (found["gone"], found["recorded"]) == ([], False)


def test_who_has_left_comes_from_the_recording(
    console: Console, install: Install, tmp_path: Path
) -> None:
    name, now = install("fifo"), datetime.now(UTC)
    here = ["--seconds", "0", "--recordings", str(tmp_path)]
    connection = console.done("consumers", name, "--json", *here).json["connection"]
    left = Consumer("mail\x1b", ("pop",), "p", "10.0.0.4", "ann", 2, now, None, now, None, None)
    queue = installed_queue("public", name, design("fifo"), {})
    recorder = Recorder(tmp_path, connection)
    for hours in (30, 2):
        at = now - timedelta(hours=hours)
        who = left if hours == 2 else Consumer("long ago", *list(vars(left).values())[1:11])
        recorder.add(CONSUMERS, rows(Consumers(queue, at, (who,)), at, late=0))
    recorder.close()
    found = console.done("consumers", name, "--json", *here).json
    (one,) = found["gone"]
    assert (one["name"], one["host"], one["does"], one["sessions"]) == (
        *("mail\x1b", "10.0.0.4", ["pop"]),
        2,
    )
    assert one["last_seen"] == (now - timedelta(hours=2)).isoformat()
    text = console.done("consumers", name, *here).text
    assert "Gone in the last day: 1" in text
    assert "mail␛: pops, last seen" in text
    assert "10.0.0.4, p, user ann" in text
    assert "No session was seen popping or pushing." in text
