"""Scenarios of libraries' workers, for each library: what they leave, the console puts right."""

from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from tests.cli.calls import Console
from tests.contract import (
    debian_libraries,
    node_libraries,
    oban_library,
    pgmq_library,
    python_libraries,
    stand_in,
)
from tests.contract.libraries import LibraryApp, adopt, counts, figures, listed, planned
from tests.servers import wait_until

Create = Callable[[str], LibraryApp]

PROCRASTINATE, PGQUEUER, GRAPHILE, PG_BOSS, OBAN, PGMQ, RIVER, SOLID_QUEUE = (
    python_libraries.procrastinate,
    python_libraries.pgqueuer,
    node_libraries.graphile_worker,
    node_libraries.pg_boss,
    oban_library.oban,
    pgmq_library.pgmq,
    stand_in.river,
    stand_in.solid_queue,
)
FAILING = (PROCRASTINATE, PGQUEUER, GRAPHILE, PG_BOSS, OBAN, RIVER, SOLID_QUEUE)
"""All but pgmq, whose messages do not fail."""
KEYED = (PROCRASTINATE, PGQUEUER, GRAPHILE, PG_BOSS, RIVER, SOLID_QUEUE)
"""Those whose jobs may have a key: pgmq's have none, and Oban's uniqueness is its client's."""
DEBIAN = (debian_libraries.delayed_job, debian_libraries.laravel, debian_libraries.symfony)
LEFT = (PROCRASTINATE, PGQUEUER, GRAPHILE, PG_BOSS, OBAN, PGMQ, SOLID_QUEUE, *DEBIAN)
"""All but River, whose JobRescuer, in Go, is the only one that takes its jobs back."""


def each(*libraries: Create, short: Sequence[Create] = ()) -> pytest.MarkDecorator:
    """A case for each library; in the short tier of these only."""
    cases = [
        pytest.param(one, id=one.__name__, marks=[] if one in short else pytest.mark.long)
        for one in libraries
    ]
    return pytest.mark.parametrize("create", cases)


def all_ended(console: Console) -> bool:
    """Whether no job waits, runs or has failed."""
    shown = figures(console, "jobs")
    return not any(shown[state] for state in ("ready", "claimed", "errors"))


@each(*FAILING)
def test_failed_jobs_are_retried_once_each_while_workers_run(
    console: Console, create: Create
) -> None:
    app = create(console.url)
    app.note_runs()
    jobs = Counter(map(str, app.fail(40)))
    adopt(console, app.preset)
    assert figures(console, "jobs")["errors"] == len(jobs) == 40
    with app.working(), app.working():
        console.done("requeue", "jobs", "--yes")
        wait_until(lambda: all_ended(console), "its workers ran what was retried")
    assert app.runs() == jobs
    assert app.taken() in (None, jobs + jobs)


@each(*KEYED)
def test_a_failed_job_in_whose_place_another_one_waits_stays_failed(
    console: Console, create: Create
) -> None:
    app = create(console.url)
    failed, (replaced, newer) = app.fail(2), app.replaced()
    adopt(console, app.preset)
    before = listed(console, "jobs", "--state", "error")
    assert {*map(str, failed), str(replaced)} <= {one["id"] for one in before}
    kept = planned(console, "requeue", "jobs")["skipped"]
    failures = console.done("requeue", "jobs", "--yes", "--json").json["result"]["failed"]
    why: dict[str, int] = {app.stays: 1}
    assert (kept, failures) == ((why, {}) if app.stays_in_plan else ({}, why))
    (stayed,) = listed(console, "jobs", "--state", "error")
    assert stayed["id"] == str(replaced)
    assert app.waiting() == Counter(map(str, [*failed, newer]))


@each(*LEFT, short=[PROCRASTINATE])
def test_jobs_of_a_killed_worker_are_run_once_by_others(console: Console, create: Create) -> None:
    app = create(console.url)
    app.note_runs()
    jobs = Counter(map(str, app.add(12)))
    adopt(console, app.preset)
    left = Counter(map(str, app.leave(4)))
    # So far it may be alive.
    errors, done = (figures(console, "jobs")[state] for state in ("errors", "done"))
    assert figures(console, "jobs") == counts(8, 0, 4, 0, errors, done)
    if not app.keeps:
        assert planned(console, "release", "jobs")["count"] == 0
    app.silence()
    assert figures(console, "jobs")["stuck"] == (0 if app.taken_back else len(left))
    if (stalled := app.stalled()) is not None:
        assert {*map(str, stalled)} == {*left}
    with app.working(), app.working():
        if app.keeps:
            console("release", "jobs", "--yes").failed(4, app.keeps)
            app.recover()
        else:
            if app.taken_back:  # what is forced would be taken from living workers too
                only = counts(0, 0, 4, 0, errors, done)
                wait_until(lambda: figures(console, "jobs") == only, "they ran the others")
            console.done("release", "jobs", *app.release, "--yes")
        wait_until(lambda: all_ended(console), "they ran all")
    assert app.runs() == jobs
    assert app.taken() in (None, jobs + left)
