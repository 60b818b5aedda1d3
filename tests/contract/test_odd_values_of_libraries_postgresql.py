"""What a column of a library's table may hold and nobody expects, next to a usual job: every verb
shows both."""

import json
from collections.abc import Mapping, Sequence

import pytest

from tests.cli.calls import Console
from tests.contract.libraries import Tables, adopt, listed
from tests.contract.stand_in import DELAYED_JOB, HANGFIRE, LARAVEL, RIVER, SOLID_QUEUE, SYMFONY
from tests.contract.test_odd_values_postgresql import ODD

CYCLE = 10
"""Of each ten jobs the first is usual."""
_JSON = (*ODD["jsonb"], "1", '"x"', '{"error": {"a": 1}, "at": "infinity", "EnqueueAt": "x"}')
_TEXT = (*ODD["text"], '{"message": 1, "exception_class": []}', "[1e400]", "null")
VALUES: Mapping[str, Sequence[str]] = {
    "timestamptz": ODD["timestamptz"],
    # timestamp(0) stores what is rounded up to the year 294277, and the server then cannot write it
    "timestamp": (*ODD["timestamp"][:-2], "294276-12-31 23:59:59", ODD["timestamp"][-1]),
    "jsonb": _JSON,
    "text": _TEXT,
    "varchar": _TEXT,
    "_jsonb": ("{}", "{NULL}", '{"null"}', '{"[1]",NULL}', r'{"{\"error\": {}}"}', '{{"1"},{"2"}}'),
    "_text": ("{}", "{NULL}", "{{a,b},{c,d}}", "[5:5]={a}"),
    "int2": ("32767", "-32768"),
    "int4": ("2147483647", "-2147483648"),
    "int8": ODD["bigint"],
    "bytea": ODD["bytea"],
}
_SERIES = f"generate_series(1, {CYCLE}) AS n"
JOBS = {
    "river": (
        RIVER,
        f"""
        INSERT INTO river_queue (name) VALUES ('default');
        INSERT INTO river_job (state, errors, attempt, attempted_at, finalized_at)
        SELECT 'discarded', ARRAY['{{"error": "no"}}'::jsonb], 1, now(), now() FROM {_SERIES};
        INSERT INTO river_job (state) SELECT 'available' FROM {_SERIES};
        INSERT INTO river_job (state, attempted_at) SELECT 'running', now() FROM {_SERIES};
        """,
    ),
    "solid-queue": (
        SOLID_QUEUE,
        f"""
        INSERT INTO solid_queue_jobs (arguments) SELECT '{{}}' FROM generate_series(1, {3 * CYCLE});
        INSERT INTO solid_queue_failed_executions (job_id, error, created_at)
        SELECT n, '{{"message": "no"}}', now() FROM {_SERIES};
        INSERT INTO solid_queue_ready_executions (job_id, queue_name, created_at)
        SELECT n + {CYCLE}, 'mail', now() FROM {_SERIES};
        INSERT INTO solid_queue_scheduled_executions (job_id, queue_name, created_at, scheduled_at)
        SELECT n + {2 * CYCLE}, 'mail', now(), now() FROM {_SERIES};
        """,
    ),
    "hangfire": (
        HANGFIRE,
        f"""
        INSERT INTO job (statename, stateid)
        SELECT name, n FROM unnest(ARRAY['Failed', 'Enqueued', 'Scheduled']) WITH ORDINALITY
            AS s (name, at), LATERAL (SELECT n + {CYCLE} * (at - 1) AS n FROM {_SERIES}) AS i;
        INSERT INTO state (id, jobid, name, data)
        SELECT id, id, statename, '{{"EnqueueAt": "2026-03-01T00:00:00Z"}}' FROM job;
        INSERT INTO jobqueue (jobid, queue) SELECT n + {CYCLE}, 'default' FROM {_SERIES};
        """,
    ),
    "delayed-job": (
        DELAYED_JOB,
        f"""
        INSERT INTO delayed_jobs (handler, queue, run_at, created_at, last_error, failed_at)
        SELECT 'x', 'mail', now(), now(), 'no', now() FROM {_SERIES};
        INSERT INTO delayed_jobs (handler, queue, run_at, created_at, locked_at, locked_by)
        SELECT 'x', 'mail', now(), now(), now(), 'w' FROM {_SERIES};
        """,
    ),
    "laravel": (
        LARAVEL,
        f"""
        INSERT INTO jobs (queue, payload, attempts, available_at, created_at, reserved_at)
        SELECT 'mail', '{{"displayName": "x"}}', 1, 1, 1, CASE WHEN n > 1 THEN 1 END
        FROM {_SERIES};
        """,
    ),
    "symfony": (
        SYMFONY,
        f"""
        INSERT INTO messenger_messages
            (body, headers, queue_name, created_at, available_at, delivered_at)
        SELECT 'x', '{{}}', 'mail', now(), now(), CASE WHEN n > 1 THEN now() END FROM {_SERIES};
        """,
    ),
}
"""The tables of each, and jobs in some of their states."""
TIMES = {
    ("river", "river_job", "created_at"): "pushed_at",
    ("river", "river_job", "scheduled_at"): "due_at",
    ("river", "river_job", "attempted_at"): "claimed_at",
    ("symfony", "messenger_messages", "available_at"): "due_at",
    ("delayed-job", "delayed_jobs", "run_at"): "due_at",
    ("solid-queue", "solid_queue_jobs", "created_at"): "pushed_at",
}
"""Columns whose odd times are findings, and their roles."""
_COLUMNS = """
SELECT table_name, column_name, udt_name FROM information_schema.columns
WHERE table_schema = 'Theirs'
    AND table_name NOT IN ('solid_queue_processes', 'solid_queue_pauses', 'solid_queue_semaphores')
    AND column_name NOT IN ('id', 'job_id', 'jobid', 'stateid', 'updated_at', 'headers')
ORDER BY table_name, column_name
"""


def put(theirs: Tables, table: str, column: str, values: Sequence[str]) -> None:
    """Each value into every tenth row, unless a constraint forbids it."""
    theirs.run(
        "\n".join(
            f"""
            DO $do$ BEGIN
                UPDATE {table} SET {column} = $odd${value}$odd$
                WHERE mod((to_jsonb({table}) ->> 'id')::bigint - 1, {CYCLE}) = {number};
            EXCEPTION WHEN integrity_constraint_violation OR data_exception THEN NULL; END $do$;
            """
            for number, value in enumerate(values, 1)
        )
    )


def reads(console: Console, where: str) -> list[str]:
    """Every verb that reads; what went wrong."""
    wrong = []
    for words in (
        *(("status", "jobs"), ("messages", "jobs"), ("errors", "jobs"), ("check", "jobs")),
        *(("doctor", "jobs", "--idle-for", "0s"), ("messages", "jobs", "--payload")),
        *(("messages", "jobs", "--state", state) for state in ("error", "scheduled", "claimed")),
        *((verb, "jobs", "--dry-run") for verb in ("requeue", "purge", "release")),
    ):
        answer = console(*words)
        refused = any(one in answer.err for one in ("keeps no", "is not available", "has no"))
        if "Traceback" in answer.err or (answer.status not in {0, 1} and not refused):
            wrong.append(f"{where}: {words}: {answer.status} {answer.err[-600:]}")
    (status,) = json.loads(console("status", "jobs", "--json").out)["queues"]
    (examined,) = json.loads(console("doctor", "jobs", "--idle-for", "0s", "--json").out)["queues"]
    unseen = [one for one in examined["unseen"] if one.startswith("times out of range")]
    return wrong + [f"{where}: {one}" for one in (status["problem"], *unseen) if one]


@pytest.mark.thinned(3)
@pytest.mark.parametrize("preset", JOBS)
def test_odd_values_in_every_column_of_a_librarys_tables(console: Console, preset: str) -> None:
    tables, jobs = JOBS[preset]
    theirs = Tables(console.url, "Theirs")
    theirs.create(tables)
    wrong = []
    for table, column, type_ in theirs.rows(_COLUMNS):
        if type_ not in VALUES:
            continue
        theirs.run(f'DROP SCHEMA "Theirs" CASCADE; CREATE SCHEMA "Theirs"; {tables} {jobs}')
        if console("status", "jobs").status != 0:
            adopt(console, preset)
        usual = {one["id"] for one in listed(console, "jobs", "--payload")}
        put(theirs, table, column, VALUES[type_])
        where = f"{table}.{column}"
        wrong += reads(console, where)
        if role := TIMES.get((preset, table, column)):
            (one,) = console("doctor", "jobs", "--idle-for", "0s", "--json").json["queues"]
            times = [it["evidence"].get("time") for it in one["findings"]]
            wrong += [] if role in times else [f"{where}: no time_out_of_range"]
        if column not in {"queue", "queue_name", "name", "statename"}:
            answer = console("messages", "jobs", "--payload", "--json")
            shown = {one["id"] for one in answer.json["messages"]} if not answer.status else {}
            if shown != usual:
                wrong.append(f"{where}: {len(usual)} jobs, {len(shown)} shown")
    assert not wrong, "\n".join(wrong)
