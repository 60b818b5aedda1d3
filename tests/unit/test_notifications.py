"""Notifications without a server: keys, effects of diagnoses, formats, configuration."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.config import ConfigurationError, load
from console.designs import DESIGNS
from console.doctor.finding import Code, Diagnosis, Finding
from console.features.notify.notifier import back_off
from console.features.notify.outbox import Changes, Entry, changes, endings_of_missing_queues
from console.features.notify.receivers import targets
from console.features.notify.targets import (
    TEMPLATES,
    Bell,
    Event,
    Program,
    Source,
    Target,
    Webhook,
    example_events,
    key_of,
)
from console.monitor.limits import Severity
from tests.contract.variants import Variant

NOW = datetime(2026, 11, 23, 3, 4, 5, tzinfo=UTC)
CODES = [Code(name, Severity.WARNING, "it is so") for name in ("a", "b", "c")]
TARGETS = (Target("x", Bell()), Target("y", Bell(), queues=("q1",)))
texts = st.text(max_size=5)


@given(
    st.lists(texts, min_size=1, max_size=6),
    st.lists(texts, min_size=1, max_size=6),
    st.integers(0, 3),
)
def test_a_key_identifies_a_finding_and_its_beginning(
    one: list[str], other: list[str], late: int
) -> None:
    at = NOW + timedelta(microseconds=late)
    assert key_of(one, NOW) == key_of(list(one), NOW)
    assert (key_of(one, NOW) == key_of(other, at)) == (one == other and not late)
    assert key_of(one, NOW).isascii()
    assert len(key_of(one, NOW)) <= 64


def queue(name: str) -> object:
    return Variant(DESIGNS["fifo"], {}).queue("public", name, "postgresql")


def diagnosis_of(name: str, codes: set[int], unproven: set[int] = frozenset()) -> Diagnosis:  # type: ignore[assignment]
    findings = tuple(Finding(CODES[it], f"{it}") for it in sorted(codes))
    names = frozenset(CODES[it].name for it in unproven)
    return Diagnosis(queue(name), findings, unproven=names)  # type: ignore[arg-type]


def applied(entries: dict[int, Entry], made: Changes) -> dict[int, Entry]:
    """The outbox's entries after these changes."""
    after = dict(entries)
    for entry in made.ended:
        after[entry.notification_id] = replace(after[entry.notification_id], ended_at=NOW)
    for entry in made.withdrawn:
        del after[entry.notification_id]
    for new in made.begun:
        number = len(after) + 1
        key = key_of((new.target, new.schema, new.queue, new.code, str(number)), NOW)
        after[number] = Entry(number, key, **vars(new), ended_at=None, sent_at=None, tries=1)
    return after


found = st.sets(st.integers(0, 2))
diagnoses = st.lists(st.tuples(st.sampled_from(["q1", "q2"]), found, found), max_size=12)


@given(diagnoses)
def test_each_receiver_gets_each_finding_and_its_end_in_turn_whatever_the_diagnoses(
    diagnosed: list[tuple[str, set[int], set[int]]],
) -> None:
    entries: dict[int, Entry] = {}
    for name, codes, unproven in diagnosed:
        diagnosis = diagnosis_of(name, codes, unproven)
        entries = applied(entries, changes(tuple(entries.values()), TARGETS, [diagnosis], NOW))
        assert not changes(tuple(entries.values()), TARGETS, [diagnosis], NOW)  # nothing is new
        ongoing = [it for it in entries.values() if it.ended_at is None]
        for target in TARGETS:
            reported = [it.code for it in ongoing if (it.target, it.queue) == (target.name, name)]
            assert len(reported) == len(set(reported))
            expected = (
                {CODES[it].name for it in codes}
                if target.accepts(name, Severity.WARNING)
                else set()
            )
            assert expected <= set(reported) <= expected | {CODES[it].name for it in unproven}
    assert len({it.event_key for it in entries.values()}) == len(entries)
    gone = applied(entries, endings_of_missing_queues(tuple(entries.values()), TARGETS, set()))
    assert all(it.ended_at is not None for it in gone.values())
    for one in gone.values():
        assert [event.ended for event in one.events] == [False, True]
        assert {event.key for event in one.events} == {one.event_key}


def test_entries_for_another_recorder_s_receivers_are_unchanged() -> None:
    (entry,) = applied({}, changes((), TARGETS[1:], [diagnosis_of("q1", {0})], NOW)).values()
    assert not changes([entry], TARGETS[:1], [diagnosis_of("q1", set())], NOW)
    assert not endings_of_missing_queues([entry], TARGETS[:1], set())


def test_error_texts_and_findings_below_the_level_are_not_sent() -> None:
    quoting = Finding(CODES[0], "3 errors; the first: PAYLOAD", {"first_error": "PAYLOAD"})
    diagnosis = Diagnosis(queue("q1"), (quoting,))  # type: ignore[arg-type]
    (begun,) = changes((), TARGETS[:1], [diagnosis], NOW).begun
    assert begun.summary == "3 errors"
    assert not changes((), [replace(TARGETS[0], level=Severity.CRITICAL)], [diagnosis], NOW)


@given(st.integers(1, 10_000))
def test_retries_become_rarer_but_never_stop(failures: int) -> None:
    assert 1.0 <= back_off(failures) <= 300.0
    assert back_off(failures + 3) > back_off(failures) or back_off(failures) > 200.0


@given(st.text(max_size=2000), st.sampled_from(Severity))
def test_every_template_stays_within_its_receiver_s_limits(
    summary: str, severity: Severity
) -> None:
    begun, ended = example_events(("orders", "x"), NOW)
    events: list[Event] = [replace(begun, summary=summary, severity=severity), ended]
    source = Source("orders <!channel>", "shop", production=True)
    for name, template in TEMPLATES.items():
        messages = list(template(source, events, "key"))
        assert [it for one in messages for it in one.events] == events
        if name == "slack":
            (text,) = (str(one.body["text"]) for one in messages)
            assert "<" not in text
            assert "PRODUCTION" in text
        if name == "pagerduty":
            for message in messages:
                payload = message.body["payload"]
                assert isinstance(payload, dict)
                assert len(payload["summary"]) <= 1024
                assert payload["severity"] in {"critical", "error", "warning", "info"}
                assert len(str(message.body["dedup_key"])) <= 255


RIGHT = """
notify = ["hook"]
[profiles.a]
url = "postgresql+psycopg://u@h/d"
group = "shop"
[profiles.b]
url = "postgresql+psycopg://u:${env:PW}@h/d"
notify = "all"
[profiles.c]
url = "postgresql+psycopg://u@h/d"
[groups.shop]
notify = []
[notifications.hook]
to = "webhook:https://x.example/y"
level = "critical"
queues = ["inv*"]
within = "1m"
[notifications.page]
to = "exec:/bin/page '-u  x'"
secret = "${env:PAGE}"
"""


def configuration_of(tmp_path: Path, text: str, **environment: str) -> object:
    file = tmp_path / "config.toml"
    file.write_text(text, encoding="utf-8")
    configuration = load({"DBQ_CONFIG": str(file), **environment})
    configuration.require_all()
    return configuration


def test_a_profile_s_targets_are_its_own_its_group_s_or_the_default(tmp_path: Path) -> None:
    loaded = configuration_of(tmp_path, RIGHT, PW="1", PAGE="2", HOME="/h", DBQ_URL="3")
    a, b, c = loaded.profiles()  # type: ignore[attr-defined]
    assert targets(loaded, a) == ()  # type: ignore[arg-type]
    hook, page = targets(loaded, b)  # type: ignore[arg-type]
    assert [target.name for target in targets(loaded, c)] == [hook.name]  # type: ignore[arg-type]
    assert (hook.level, hook.within_seconds) == (Severity.CRITICAL, 60.0)
    assert hook.accepts("invoices", Severity.CRITICAL)
    assert not hook.accepts("orders", Severity.CRITICAL)
    assert not hook.accepts("invoices", Severity.WARNING)
    assert page.receiver == Program(("/bin/page", "-u  x"))
    assert page.secret() == "2"
    assert "x" not in page.receiver.shown.removeprefix("exec:")
    assert set(page.environment) == {"DBQ_CONFIG", "HOME"}


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ("", "needs to ="),
        ("to = 3", "must be a string"),
        ('to = "mail:x"', 'must be "webhook:URL"'),
        ('to = "webhook:ftp://x"', "must begin with https://"),
        ('to = "webhook:https://u:hunter2@x/y"', "has a user or a password in it"),
        ('to = "exec:"', "exec:PROGRAM"),
        ('to = "exec:a \'b"', "a quote is not closed"),
        ('to = "webhook:https://x/${env:}"', "variable's name"),
        ('to = "webhook:https://x"\ntemplate = "pagerduty"', "needs secret"),
        ('to = "webhook:https://x/{secret}"', "needs secret"),
        ('to = "webhook:https://x/hunter2"\ntemplate = "slack"', "must not be in a file"),
        ('to = "webhook:http://x"\nsecret = "${env:A}"', "must be https"),
        ('to = "webhook:https://x"\nsecret = "hunter2"', "not the password itself"),
        ('to = "webhook:https://x"\nsecret = "prompt"', "cannot be a prompt"),
        ('to = "bell"\ntemplate = "slack"', "is for webhooks"),
        ('to = "bell"\nlevel = "warn"', "must be one of note, warning, critical"),
        ('to = "bell"\nqueues = []', "must name at least one queue"),
        ('to = "bell"\nwithin = "2h"', "must be a duration"),
        ('to = "bell"\nlevle = "note"', 'did you mean "level"?'),
        ('to = "bell"\n[profiles.p]\nurl = "sqlite://"\nnotify = ["z"]', "there is no [notif"),
    ],
)
def test_each_mistake_is_reported_with_its_line_and_without_possible_secrets(
    lines: str, why: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError) as error:
        configuration_of(tmp_path, f"[notifications.x]\n{lines}\n")
    assert why in str(error.value)
    assert "config.toml:" in str(error.value)
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("https://x.example", "https://x.example"),
        ("https://x.example:1/hunter2", "https://x.example:1/***"),
        ("https://x.example?token=hunter2", "https://x.example/***"),
        ("https://${env:HOST}/a", "https://${env:HOST}/***"),
        ("${env:WHOLE}", "${env:WHOLE}"),
        ("${env:WHOLE}/hunter2", "${env:WHOLE}/***"),
    ],
)
def test_only_the_host_of_an_address_is_shown(written: str, shown: str) -> None:
    assert Webhook(written, str).shown == f"webhook:{shown}"
