"""`--json`: one object for every outcome; counts are integers and durations are seconds."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.cli.calls import Answer, Console, call
from tests.cli.conftest import Install
from tests.cli.verbs import PASSWORD, READING, UNREACHABLE, WRITING, verbs
from tests.servers import execute

ERROR = ["what", "why", "next_step", "exit"]


def failed(answer: Answer, status: int) -> dict[str, Any]:
    """The error, the only object on stdout; stderr has it as text."""
    assert answer.status == status, answer
    assert list(answer.json) == ["error"]
    error = answer.json["error"]
    assert list(error) == ERROR
    assert error["exit"] == status
    assert error["what"] in answer.err
    assert PASSWORD not in answer.err + answer.text
    assert "Traceback" not in answer.err
    assert isinstance(error, dict)
    return error


def test_wrong_use_of_every_verb_is_reported_as_one_json_object() -> None:
    for verb, _ in verbs():
        for words in (["--json", "--no-such"], ["--no-such", "--json"]):
            error = failed(call(*verb.split(), *words), 2)
            assert "--no-such" in error["what"]
            assert f"{verb} --help" in error["next_step"]
        call(*verb.split(), "--no-such", "--", "--json").failed(2)
    for words in (["no-such-verb", "--json"], ["--json"], ["--no-such", "status", "--json"]):
        failed(call(*words), 2)


@pytest.mark.parametrize("words", [*READING, *WRITING])
def test_an_unreachable_server_is_reported_as_one_json_object(words: str) -> None:
    answer = call(*words.split(), "--json", "--url", UNREACHABLE)
    assert "127.0.0.1" in failed(answer, 3)["why"]
    assert answer.err.count("Could not") == 1


@pytest.mark.parametrize("words", WRITING)
def test_missing_rights_are_reported_as_one_json_object_without_connecting(words: str) -> None:
    for rights in ["read-only", *(["operator"] if WRITING[words] == "admin" else [])]:
        answer = call(*words.split(), "--json", "--rights", rights, "--url", UNREACHABLE)
        assert f"needs the right {WRITING[words]}" in failed(answer, 4)["what"]
        assert rights in answer.err


def keys(value: object) -> Iterator[tuple[str, object]]:
    """All keys of all objects in it, with their values."""
    if isinstance(value, dict):
        yield from value.items()
        for one in value.values():
            yield from keys(one)
    elif isinstance(value, list):
        for one in value:
            yield from keys(one)


UNITS = ("_ms", "_us", "_minutes", "_hours", "_days", "_s")


def durations_are_seconds(found: object) -> None:
    for key, value in keys(found):
        assert not key.endswith(UNITS), key
        assert key not in {"ms", "took", "age", "duration"}, key
        if key.endswith("_seconds") and not isinstance(value, dict):
            assert value is None or isinstance(value, int | float), (key, value)


@pytest.fixture(scope="module")
def queues_in_every_state(console: Console) -> None:
    """Queues with messages in each state, for every verb that acts."""
    for name, design in (("kept", "status"), ("numbered", "ring")):
        console.done("install", design, name)
        console.done("push", name, "-", "--lines", stdin=b"".join(b"%d\n" % n for n in range(12)))
    console.done("pop", "kept", "--count", "2", "--complete")
    console.done("pop", "kept", "--count", "2", "--fail", "boom")
    console.done("pop", "kept")
    old = "UPDATE kept SET claimed_at = now() - interval '1 day' WHERE status = 1"
    execute(console.url, old)


ACTING = {
    "requeue kept": 2,
    "release kept --force --unknown": 1,
    "archive kept": 2,
    "purge kept": 10,
    "restore kept": 10,
    "maintain kept": None,
    "upgrade kept": 0,
    "resize numbered 20": 1,
    "relay numbered": 1,
    "purge numbered": 12,
    "uninstall numbered --with-messages": 1,
}
"""Every verb that plans first, in an order in which each has something to do, with its count."""


def test_every_verb_that_plans_has_the_same_json_shape(
    console: Console, queues_in_every_state: None
) -> None:
    for words, done in ACTING.items():
        name = words.split()[1]
        planned = console(*words.split(), "--json")
        assert set(planned.json) >= {"queue", "schema", "plan", "done"}
        assert planned.json["done"] == 0
        if planned.json["plan"].get("needed", True):
            assert planned.status == 4, planned
            assert list(planned.json["error"]) == ERROR
        else:
            assert planned.status == 0, planned
            assert "error" not in planned.json
        dry = console.done(*words.split(), "--json", "--dry-run").json
        assert "error" not in dry
        assert "result" not in dry
        assert dry["done"] == 0
        json = console.done(*words.split(), "--json", "--yes", name).json
        assert set(json) - {"design"} == {"queue", "schema", "plan", "done", "result"}
        assert type(json["done"]) is int
        assert done is None or json["done"] == done, words
        for one in (planned.json, dry, json):
            durations_are_seconds(one)


READING_CALLS = (
    *("status", "messages mail", "errors mail", "waits --seconds 0", "doctor mail --idle-for 0s"),
    *("report mail", "check --max-age 1d", "audit", "smoke mail", "stuck mail"),
)


@pytest.mark.long
def test_durations_are_numbers_of_seconds(console: Console, install: Install) -> None:
    name = install("claim")
    console.done("push", name, "-", "--lines", stdin=b"a\nb\n")
    console.done("pop", name, "--fail", "boom")
    for words in READING_CALLS:
        answer = console(*(name if word == "mail" else word for word in words.split()), "--json")
        assert answer.status in {0, 1}, answer
        durations_are_seconds(answer.json)
