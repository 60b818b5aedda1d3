"""What a column of a library's table may hold and nobody expects, next to a usual job: every verb
shows both, and does what it does with both."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import pytest

from console.engines import open_database
from console.features.presets.designs import LIBRARIES
from tests.cli.calls import Answer, Console
from tests.contract.libraries import Tables, adopt
from tests.contract.library_table import BY_NAME, CYCLE, LIBRARY_TABLE, Library
from tests.tui import tour

pytestmark = pytest.mark.slow

TURNS, LONG_TURNS = (1,), range(4)
"""How often all columns have odd values at once, each time of other combinations in a row."""
ON_SCREENS = [BY_NAME[name] for name in ("river", "oban", "symfony", "graphile-worker")]
Words = tuple[str, ...]
READING: Sequence[Words] = (
    *((verb, "jobs") for verb in ("errors", "check")),
    ("messages", "jobs", "--payload"),
    ("requeue", "jobs", "--dry-run"),
)
WRITING: Sequence[Words] = (
    ("requeue", "jobs", "--yes", "jobs", "--json"),
    ("release", "jobs", "--unknown", "--force", "--yes", "jobs", "--json"),
)
ALL: Sequence[Words] = (
    *READING,
    ("messages", "jobs"),
    ("report", "jobs", "--idle-for", "0s"),
    ("consumers", "jobs", "--seconds", "0"),
    ("check", "jobs", "--max-age", "1h", "--max-overdue", "1h"),
    *(
        ("messages", "jobs", "--filter", one)
        for one in (
            *(f"state={state}" for state in ("error", "scheduled", "claimed", "done")),
            *("older=1h", "newer=1h", "claimed_by=w", "error~no", "payload.n=1"),
        )
    ),
    *((verb, "jobs", "--dry-run") for verb in ("purge", "release", "archive", "pause", "resume")),
    *WRITING,
)


def called(console: Console, calls: Sequence[Words]) -> dict[Words, Answer]:
    return {words: console(*words) for words in calls}


def faults(answers: Mapping[Words, Answer], usual: Mapping[Words, Answer]) -> Iterator[str]:
    """What ended otherwise than with usual jobs only."""
    for words, answer in answers.items():
        # 1: something was found, or not all could be done
        if "Traceback" in answer.err or answer.status not in {usual[words].status, 0, 1}:
            yield f"{' '.join(words)}: {answer.status} {answer.err[-600:]}"


def not_json(constant: str) -> Any:
    raise AssertionError(f"{constant} is no JSON")


def read(console: Console, *words: str) -> Any:
    return json.loads(console.done(*words, "--json").out, parse_constant=not_json)


def unseen(console: Console) -> list[str]:
    """What the doctor could not examine; a second sample, and a count that no column has, are no
    matter of values."""
    answer = console("doctor", "jobs", "--idle-for", "0s", "--json")
    (examined,) = json.loads(answer.out, parse_constant=not_json)["queues"]
    return [
        one
        for one in examined["unseen"]
        if not any(known in one for known in ("two samples", "no column counts"))
    ]


def figures(console: Console, count: int | None, *, aged: bool) -> Iterator[str]:
    """What is wrong with the figures of so many jobs (None: any number), and with their ages.
    `aged`: that of usual jobs is known."""
    (status,) = read(console, "status", "jobs")["queues"]
    messages = read(console, "messages", "jobs", "--limit", "1000")["messages"]
    if status["problem"]:
        yield status["problem"]
    if (
        aged
        and status["age_seconds"] is None
        and any(message["state"] == "ready" for message in messages)
    ):
        yield "its age is unknown"
    if count not in {None, len(messages)}:
        yield f"{count} jobs, {len(messages)} shown"
    ages = [message["age_seconds"] for message in messages]
    for age in (status["age_seconds"], *ages):
        if age is not None and age < 0:
            yield f"{age} seconds old"


def texts(theirs: Tables, of: Library) -> list[Any]:
    """Each text of a job that is no business of a requeue, as it is stored."""
    columns = theirs.rows(
        "SELECT column_name FROM information_schema.columns WHERE table_schema = %s"
        " AND table_name = %s AND udt_name IN ('json', 'jsonb', 'text', 'bytea', '_jsonb')"
        " AND NOT column_name = ANY(%s)",
        [theirs.schema, of.tables[0], list(of.rewrites)],
    )
    stored = ", ".join(f"md5(CAST({column} AS text))" for (column,) in columns)
    return theirs.rows(f"SELECT {stored} FROM {of.tables[0]} ORDER BY {stored}")


def acted(
    console: Console, theirs: Tables, of: Library, usual: Mapping[Words, Answer]
) -> Iterator[str]:
    before = texts(theirs, of)
    yield from faults(called(console, WRITING), usual)
    if texts(theirs, of) != before:
        yield "a text was written"


def test_there_are_odd_jobs_of_every_preset() -> None:
    assert {of.preset for of in LIBRARY_TABLE} == set(LIBRARIES)


def adopted(console: Console, of: Library) -> Tables:
    theirs = of.create(console.url)
    of.start(theirs)
    adopt(console, of.preset)
    return theirs


@pytest.mark.long
@pytest.mark.parametrize("of", LIBRARY_TABLE, ids=str)
def test_odd_values_in_each_column_of_a_librarys_tables(console: Console, of: Library) -> None:
    theirs = adopted(console, of)
    count = len(read(console, "messages", "jobs", "--limit", "1000")["messages"])
    assert count >= CYCLE
    (status,) = read(console, "status", "jobs")["queues"]
    aged = status["age_seconds"] is not None
    usual = called(console, (*READING, *WRITING))
    wrong = []
    for column in of.columns(theirs):
        of.start(theirs)
        column.put(theirs)
        shown = None if str(column) in of.deciding else count
        found = [*faults(called(console, READING), usual), *figures(console, shown, aged=aged)]
        found += [*unseen(console), *acted(console, theirs, of, usual)]
        wrong += [f"{column}: {one}" for one in found]
    assert not wrong, "\n".join(wrong)


@pytest.mark.thinned(5)
@pytest.mark.parametrize("of", LIBRARY_TABLE, ids=str)
def test_odd_values_in_all_columns_of_a_librarys_tables(
    console: Console, of: Library, *, long: bool
) -> None:
    theirs = adopted(console, of)
    assert not unseen(console)
    usual = called(console, ALL)
    wrong = []
    for turn in LONG_TURNS if long else TURNS:
        of.start(theirs)
        for at, column in enumerate(of.columns(theirs)):
            column.put(theirs, at * turn)
        found = [*unseen(console), *faults(called(console, ALL), usual)]
        wrong += [f"turn {turn}: {one}" for one in found]
    assert not wrong, "\n".join(wrong)


@pytest.mark.long
@pytest.mark.parametrize("of", ON_SCREENS, ids=str)
async def test_every_screen_shows_odd_values(console: Console, of: Library) -> None:
    theirs = adopted(console, of)
    for at, column in enumerate(of.columns(theirs)):
        column.put(theirs, at)
    (status,) = read(console, "status", "jobs")["queues"]
    key = (tour.HERE, status["schema"], status["queue"])
    with closing(open_database(console.url)) as database:
        async with tour.console_on(database) as screens:

            async def seen(what: str) -> None:
                await screens.until(tour.has_read)
                for bad in ("Could not", "Traceback", "unexpected"):
                    assert bad not in screens.picture, f"{what}:\n{screens.picture}"

            await seen("overview")
            await tour.queue_tour(screens, key, seen)
            await tour.screens_tour(screens, key, seen)
