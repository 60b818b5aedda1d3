"""Whatever a database, a role, the environment or the URL sets: the same figures, or refused in
words."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import pytest
from sqlalchemy import make_url

from tests.cli.calls import Answer, Console
from tests.servers import Server, connect, execute, fresh_database

pytestmark = pytest.mark.slow

HOSTILE: Mapping[str, str] = {
    "timezone": "America/New_York",
    "datestyle": "German, DMY",
    "intervalstyle": "sql_standard",
    "standard_conforming_strings": "off",
    "search_path": "theirs, public",
    "default_transaction_isolation": "serializable",
    "statement_timeout": "1ms",
    "lock_timeout": "1ms",
    "idle_in_transaction_session_timeout": "1ms",
    "idle_session_timeout": "60s",
    "row_security": "off",
    "client_encoding": "LATIN1",
    "bytea_output": "escape",
    "lc_messages": "C",
    "array_nulls": "off",
    "extra_float_digits": "-5",
    "quote_all_identifiers": "on",
}
"""Together in the short tier, one by one with --long."""
ONE_BY_ONE = {**HOSTILE, "timezone": "Asia/Tokyo", "client_encoding": "SQL_ASCII"}
EACH = [
    pytest.param(HOSTILE, id="all"),
    *(
        pytest.param({name: value}, marks=pytest.mark.long, id=name)
        for name, value in ONE_BY_ONE.items()
    ),
]
LEVELS = ("database", "role", "environment", "url")

TABLE = """
    CREATE TABLE public.jobs (id int PRIMARY KEY, made timestamp, started timestamp, worker text,
        tries int, failure text, body text);
    INSERT INTO public.jobs SELECT i, timezone('UTC', now()) - interval '30 min',
        CASE i WHEN 2 THEN timezone('UTC', now()) - interval '1 min' END, NULL, 0, NULL, 'ü ' || i
    FROM generate_series(1, 3) AS s (i);
    CREATE SCHEMA theirs;
    CREATE TABLE theirs.mail (id uuid, payload text);
    CREATE TABLE theirs.jobs (LIKE public.jobs);
"""
"""Of somebody else: its times are UTC, and have no zone."""


@pytest.fixture(scope="module")
def url(server: Server) -> Iterator[str]:
    with fresh_database(server.url) as made:
        console = Console(made)
        execute(made, TABLE)
        for words in ("claim mail", "fifo news", "ring orders --option size=50", "pending later"):
            console.done("install", *words.split())
            console.done("push", words.split()[1], "größer")
        console.done("push", "mail", "second")
        console.done("pop", "mail")
        roles = {"id": "id", "pushed_at": "made", "claimed_at": "started", "claimed_by": "worker"}
        roles |= {"attempts": "tries", "error": "failure", "payload": "body"}
        maps = [word for role, column in roles.items() for word in ("--map", f"{role}={column}")]
        console.done("adopt", "jobs", "--design", "claim", *maps)
        yield made


def options_of(settings: Mapping[str, str]) -> str:
    """libpq's options, without the time-outs: whoever sets them there means them."""
    return " ".join(
        f"-c {name}={value}".replace(", ", ",")
        for name, value in settings.items()
        if not name.endswith("timeout")
    )


@contextmanager
def set_at(level: str, url: str, settings: Mapping[str, str]) -> Iterator[Console]:
    """The command line with the settings in force at that level."""
    with ExitStack() as stack:
        parts = make_url(url)
        admin = stack.enter_context(connect(url))
        if level in {"database", "role"}:
            what = f"DATABASE {parts.database}" if level == "database" else "ROLE CURRENT_USER"
            for name, value in settings.items():
                quoted = value if name == "search_path" else f"'{value}'"
                admin.execute(f"ALTER {what} SET {name} = {quoted}".encode())
                stack.callback(admin.execute, f"ALTER {what} RESET {name}".encode())
        if level == "environment":
            usual = {
                "PGTZ": settings.get("timezone", ""),
                "PGDATESTYLE": settings.get("datestyle", ""),
                "PGCLIENTENCODING": settings.get("client_encoding", ""),
                "PGOPTIONS": options_of(settings),
            }
            given = {name: value for name, value in usual.items() if value}
            stack.enter_context(mock.patch.dict("os.environ", given))
        if level == "url":
            parts = parts.update_query_dict({"options": options_of(settings)})
        yield Console(parts.render_as_string(hide_password=False))


def figures(console: Console) -> dict[str, Any]:
    """What is shown of every queue, without what changes from second to second."""
    found: dict[str, Any] = {}
    for queue in console.done("status", "--json").json["queues"]:
        states = ("ready", "scheduled", "claimed", "stuck", "errors", "done", "gap", "capacity")
        name = queue["queue"]
        found[name] = {state: queue[state] for state in states}
        age = queue["age_seconds"]
        found[name]["age_minutes"] = None if age is None else int(age // 60 > 28)
        found[f"{name}: messages"] = [
            {key: value for key, value in message.items() if key != "age_seconds"}
            for message in console.done("messages", name, "--payload", "--json").json["messages"]
        ]
    old = console("check", "jobs", "--max-age", "10m")
    found["check"] = old.status, old.text.split()[1]
    return found


def written(console: Console) -> list[Answer]:
    """Answers of verbs that change something and put it back."""
    lines = [
        "push news again",
        "pop news --count 9",
        "push news größer",
        "purge orders --yes orders",
        "restore orders --yes orders",
        "pause news --reason x --yes news",
        "resume news --yes news",
        "resize orders 60 --yes orders",
        "resize orders 50 --yes orders",
        "install fifo scratch",
        "uninstall scratch --yes scratch",
        "upgrade mail --yes mail",
        "requeue jobs --yes jobs",
    ]
    return [console(*line.split()) for line in lines]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("settings", EACH)
def test_figures_do_not_depend_on_settings(
    url: str, level: str, settings: Mapping[str, str]
) -> None:
    expected = figures(Console(url))
    assert expected["check"] == (1, "CRITICAL")
    assert expected["jobs"]["stuck"] == 0
    with set_at(level, url, settings) as console:
        assert figures(console) == expected
        for answer in written(console):
            assert answer.status == 0, answer
        changed = figures(console)
    after = figures(Console(url))
    assert changed == after
    assert {k: v for k, v in after.items() if ":" not in k} == {
        k: v for k, v in expected.items() if ":" not in k
    }


@pytest.mark.parametrize("level", LEVELS)
def test_read_only_by_default_is_not_undone(url: str, level: str) -> None:
    """What the server forbids a login is refused, after a read-only transaction too."""
    expected = figures(Console(url))
    with set_at(level, url, {"default_transaction_read_only": "on"}) as console:
        assert figures(console) == expected
        for line in ("push news x", "purge news --yes news", "pause news --reason x --yes news"):
            console(*line.split()).failed(4, "read-only")
    assert execute(url, "SELECT payload FROM public.news") == [("größer",)]


def test_a_time_ahead_of_the_server_is_no_age_and_nothing_is_ok(database_url: str) -> None:
    """Local times, four hours east of UTC, in a column without a zone."""
    console = Console(database_url)
    execute(
        database_url,
        "CREATE TABLE public.theirs (id int PRIMARY KEY, made timestamp, body text);"
        "INSERT INTO public.theirs VALUES (1, timezone('Asia/Dubai', now()), 'x')",
    )
    maps = ["--map", "id=id", "--map", "payload=body", "--map", "pushed_at=made"]
    console.done("adopt", "theirs", "--design", "fifo", *maps)
    assert console.status("theirs")["age_seconds"] is None
    assert "age_seconds" in console.status("theirs")["unknown"]
    (message,) = console.done("messages", "theirs", "--json").json["messages"]
    assert message["age_seconds"] is None
    answer = console("check", "theirs", "--max-age", "10m")
    assert (answer.status, answer.text.split()[1]) == (1, "UNKNOWN")
