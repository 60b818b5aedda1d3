"""Why a queue is not as usual: the invented incidents, quiet hours, and the parts."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.catalog.decisions import Decision
from console.errors import UsageError
from console.features.history import segments
from console.features.history.points import spells
from console.features.history.segments import (
    ACTIONS,
    CONSUMERS,
    FINDINGS,
    LINKS,
    SAMPLES,
    RecordKind,
    TimeRange,
)
from console.features.why.commands.why import moment_of
from console.features.why.events import (
    Event,
    action_events,
    consumer_events,
    finding_events,
    link_events,
)
from console.features.why.explain import Explanation, Where, explain, timeline
from console.features.why.handover import Handover, handover, markdown
from console.features.why.recorded import merged
from console.features.why.usual import MEASURES, SLACK, Usual, excursions, usual_of
from console.features.why.views.why import VIEW
from console.figures import AGE, POP, READY
from console.views.view import Display
from tests.tools.incidents import BEGIN, KINDS, QUEUE, incident, quiet

pytestmark = pytest.mark.slow

_INCIDENTS = [(list(KINDS)[number % len(KINDS)], number) for number in range(30)]


def explained(root: Path, at: datetime) -> Explanation:
    return explain(Where(root, "prod", "public", "orders"), at, at)


def test_thirty_incidents_are_explained_by_their_true_causes(tmp_path: Path) -> None:
    first, among = [], []
    for kind, seed in _INCIDENTS:
        simulated = incident(kind, seed)
        root = tmp_path / f"{seed}"
        simulated.write(root)
        codes = [cause.code for cause in explained(root, simulated.now).causes]
        assert len(codes) <= 5
        first += [(kind, seed)] if codes[:1] == [kind] else []
        among += [(kind, seed)] if kind in codes[:3] else []
    assert len(first) >= 24, {*_INCIDENTS} - {*first}
    assert len(among) >= 28, {*_INCIDENTS} - {*among}


def test_of_quiet_hours_it_says_nothing(tmp_path: Path, *, long: bool) -> None:
    hours = [BEGIN + timedelta(hours=hour) for hour in range(3, 23)]
    recordings = 10 if long else 2
    said = []
    for seed in range(recordings):
        root = tmp_path / f"{seed}"
        quiet(23, seed).write(root)
        said += [(seed, at) for at in hours if explained(root, at).verdict != _NOTHING]
    assert len(said) <= recordings // 2, said


_NOTHING = "no figure is worse than usual: nothing to explain"


def test_what_follows_from_a_likelier_cause_says_so(tmp_path: Path) -> None:
    simulated = incident("paused", 6)
    simulated.write(tmp_path)
    found = explained(tmp_path, simulated.now)
    assert [(cause.code, cause.follows) for cause in found.causes] == [
        ("paused", None),
        ("consumers", 1),
    ]
    text = "\n".join(VIEW.lines(found, Display(UTC, simulated.now)))
    assert "(it may follow from 1)" in text
    assert "  last minute: ready " in text


def test_each_cause_has_evidence_a_time_and_what_would_disprove_it(tmp_path: Path) -> None:
    simulated = incident("consumers", 5)
    simulated.write(tmp_path)
    found = explained(tmp_path, simulated.now)
    causes: Any = found.as_json(UTC)["causes"]
    assert list(causes[0]) == ["code", "what", "at", "evidence", "disproof", "follows"]
    assert causes[0].pop("follows") is None
    assert all(causes[0].values())
    text = "\n".join(VIEW.lines(found, Display(UTC, simulated.now)))
    assert "consumers disconnected: mailer" in text
    assert "not this if: the same consumers are connected and pop" in text
    assert "what happened beside it, and" in text


def test_where_nothing_fits_it_says_so(tmp_path: Path) -> None:
    rows = [
        sample(minute * 60, age_seconds=1.0 if minute < 170 else 300.0) for minute in range(180)
    ]
    write(tmp_path, SAMPLES, *rows)
    found = explained(tmp_path, BEGIN + timedelta(hours=3))
    assert (found.verdict, found.causes) == ("nothing here explains it", ())
    (change,) = found.changes
    assert change.words == "age rose: usually 1.0 s, now 5 min"
    assert change.at == BEGIN + timedelta(minutes=170)
    assert found.basis == "the hour before"


def test_with_too_little_it_knows_nothing(tmp_path: Path) -> None:
    write(tmp_path, SAMPLES, *(sample(at, ready=3) for at in range(0, 600, 60)))
    found = explained(tmp_path, BEGIN + timedelta(minutes=10))
    assert found.verdict.startswith("too little is known: 10 recorded minutes")
    assert not found.causes


def test_the_same_hours_of_the_days_before_are_usual(tmp_path: Path) -> None:
    """What comes at this hour every day is nothing to explain."""
    noon = BEGIN + timedelta(days=4)
    for day in range(5):
        begin = day * 86_400
        rows = [
            sample(begin + at * 60, ready=5_000 if at > 90 else 5, age_seconds=1.0)
            for at in range(-60, 121)
        ]
        write(tmp_path, SAMPLES, *rows, begin=BEGIN + timedelta(days=day, hours=-1))
    found = explained(tmp_path, noon + timedelta(hours=2))
    assert found.basis == "the same hours of 4 days"
    assert found.changes == ()
    assert explained(tmp_path, BEGIN + timedelta(hours=2)).changes


# Change points.

_USUAL = Usual(100.0, 10.0, "")
_noise = st.lists(st.floats(-SLACK, SLACK), min_size=20, max_size=120)


def minutes(values: list[float]) -> list[tuple[datetime, float]]:
    return [(BEGIN + timedelta(minutes=at), value) for at, value in enumerate(values)]


def scaled(distances: list[float]) -> list[tuple[datetime, float]]:
    return minutes([_USUAL.median + _USUAL.scale * one for one in distances])


def outside_of(distances: list[float]) -> list[tuple[int, int | None, int]]:
    return list(excursions(scaled(distances), [_USUAL] * len(distances)))


@given(_noise)
def test_what_stays_in_its_band_never_left_it(distances: list[float]) -> None:
    assert outside_of(distances) == []


@given(_noise, st.data(), st.floats(-1e6, 1e6))
def test_one_odd_minute_proves_nothing(
    distances: list[float], data: st.DataObject, odd: float
) -> None:
    distances[data.draw(st.integers(0, len(distances) - 1))] = odd
    assert outside_of(distances) == []


@given(_noise, st.floats(6, 1e6), st.integers(3, 60), st.sampled_from([1, -1]))
def test_a_step_is_found_in_its_minute_and_its_end_too(
    distances: list[float], height: float, length: int, direction: int
) -> None:
    outside = [direction * height] * length
    (found,) = outside_of([*distances, *outside, 0.0, 0.0])
    begin = len(distances)
    assert found == (begin, begin + length, direction)
    (lasting,) = outside_of([*distances, *outside])
    assert lasting == (begin, None, direction)


@given(st.lists(st.floats(0, 1e6), min_size=1))
def test_a_scale_is_never_smaller_than_its_floor(values: list[float]) -> None:
    usual = usual_of(values, MEASURES[READY.name], "")
    assert min(values) <= usual.median <= max(values)
    assert usual.scale >= max(MEASURES[READY.name].floor, 0.1 * usual.median)


# Events.

RECORDER = "unattended ann@rec1 pid 7"


def at(seconds: float) -> datetime:
    return BEGIN + timedelta(seconds=seconds)


def write(root: Path, kind: RecordKind, *rows: Mapping[str, Any], begin: datetime = BEGIN) -> None:
    segment = segments.Segment(root, "prod", begin)
    segment.write(kind, rows)
    segment.close()


def sample(seconds: float, **figures: Any) -> dict[str, Any]:
    return {"at": at(seconds), **QUEUE, "design": "claim", **figures}


def finding(seconds: float, code: str | None, severity: str = "warning") -> dict[str, Any]:
    words = {"code": code, "severity": severity, "summary": f"{code} it is"}
    return {"at": at(seconds), **QUEUE, "verdict": "", **words}


def action(seconds: float, verb: str, number: int = 1, **more: Any) -> dict[str, Any]:
    blank = dict.fromkeys(ACTIONS.columns)
    of = {"verb": verb, "action_id": number, "operator": "ann@ops", "outcome": "done"}
    return {**blank, **QUEUE, "at": at(seconds), "ended_at": at(seconds + 1), **of, **more}


def consumer(seconds: float, name: str | None, sessions: int = 8, **more: Any) -> dict[str, Any]:
    blank = dict.fromkeys(CONSUMERS.columns)
    does = "pop" if name else None
    of = {"name": name, "does": does, "sessions": sessions if name else None, "host": "app3"}
    return {**blank, **QUEUE, "at": at(seconds), **of, "since": at(-60), **more}


def test_a_finding_begins_worsens_and_ends() -> None:
    rows = [
        finding(0, "old"),
        *(finding(30, code) for code in ("old", "new")),
        finding(60, "new", "critical"),
        finding(90, None),
    ]
    old, new = spells(rows)
    assert (old.code, old.first, old.ended) == ("old", True, at(60))
    assert (new.began, new.worsened, new.severity) == (at(30), at(60), "critical")
    assert new.ended == at(90)
    words = [(event.at, event.words) for event in finding_events(rows) if event.name == "new"]
    assert words == [(at(30), "critical: new it is"), (at(60), "worsened: now critical")]


def test_consumers_come_go_and_restart_and_one_examination_alone_is_not_believed() -> None:
    rows = [
        consumer(0, "mailer"),
        consumer(30, None),  # it was only not seen
        consumer(60, "mailer"),
        consumer(90, "mailer"),
        *(consumer(seconds, "mailer", 5) for seconds in (120, 150)),
        *(consumer(seconds, "mailer", 5, since=at(170)) for seconds in (180, 210)),
        *(consumer(seconds, None) for seconds in (240, 270)),
        *(consumer(seconds, "biller") for seconds in (300, 330)),
    ]
    found = [(event.at, event.name, event.words) for event in consumer_events(rows)]
    assert found == [
        (at(120), "mailer", "3 of 8 sessions disconnected at app3"),
        (at(170), "mailer", "restarted: all its 5 sessions are new at app3"),
        (at(240), "mailer", "disconnected: 5 sessions at app3"),
        (at(300), "biller", "came: 8 sessions at app3"),
    ]


def test_a_consumer_is_silent_only_while_messages_wait() -> None:
    def seen(late: int) -> list[str]:
        rows = [consumer(s, "mailer", last_pop=at(0), late=late) for s in range(0, 300, 30)]
        return [event.words for event in consumer_events(rows)]

    assert seen(0) == []
    assert seen(4) == ["last pop at app3; still connected, and messages wait"]


def test_lost_connections_and_failovers() -> None:
    blank = dict.fromkeys(LINKS.columns)
    rows = [
        {**blank, "at": at(0), "role": "primary"},
        {**blank, "at": at(1), "error": "reset"},
        {**blank, "at": at(2), "role": "primary"},
        {**blank, "at": at(10), "error": "refused"},
        {**blank, "at": at(40), "error": "refused"},
        {**blank, "at": at(50), "role": "standby", "upstream": "db2"},
        {**blank, "at": at(60), "role": "standby", "upstream": "db3"},
    ]
    found = [(event.at, event.words, event.until) for event in link_events(rows, "prod")]
    assert found == [
        (at(1), "one sample failed: reset", at(2)),
        (at(10), "lost: refused; back after 40.0 s", at(50)),
        (at(50), "failover: the server is a standby now", None),
        (at(60), "failover: the standby follows db3 now, before db2", None),
    ]


def test_an_action_is_known_as_it_ended_and_as_unattended() -> None:
    began = {**action(10, "purge"), "ended_at": None, "outcome": "running"}
    rows = merged(
        [action(10, "purge"), began], [action(20, "repair", 2, operator=RECORDER, note=None)]
    )
    found = list(action_events(rows, BEGIN))
    assert [(one.kind, one.words) for one in found] == [
        ("action", "done, by ann@ops"),
        ("unattended", f"done, by {RECORDER}"),
    ]
    assert not list(action_events(rows, at(21)))


def test_a_timeline_is_one_list_in_order_of_time(tmp_path: Path) -> None:
    write(tmp_path, SAMPLES, *(sample(seconds, ready=1) for seconds in range(0, 3600, 30)))
    write(tmp_path, FINDINGS, finding(900, None), finding(1200, "poison"), finding(1300, None))
    write(tmp_path, ACTIONS, action(600, "note", 3, note="deployed 1.4"), action(700, "pause", 4))
    write(tmp_path, CONSUMERS, *(consumer(s, "mailer") for s in (0, 30)))
    where = Where(tmp_path, "prod", None, "orders")
    found = timeline(where, 7200.0, BEGIN + timedelta(hours=1))
    assert [(one.kind, one.name) for one in found.events] == [
        ("note", "ann@ops"),
        ("action", "pause"),
        ("finding", "poison"),
    ]
    assert found.where == "public.orders on prod"
    short = timeline(where, 2500.0, BEGIN + timedelta(hours=1))
    assert [one.name for one in short.events] == ["poison"]


def test_the_schema_of_a_name_in_two_must_be_given(tmp_path: Path) -> None:
    write(tmp_path, SAMPLES, sample(0, ready=1), {**sample(1, ready=1), "schema": "other"})
    with pytest.raises(UsageError, match="several queues"):
        timeline(Where(tmp_path, "prod", None, "orders"), 7200.0, at(60))


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("03:10", datetime(2026, 3, 29, 3, 10, tzinfo=UTC)),
        ("12:30", datetime(2026, 3, 28, 12, 30, tzinfo=UTC)),
        ("2026-03-29T03:10+02:00", datetime(2026, 3, 29, 1, 10, tzinfo=UTC)),
    ],
)
def test_a_time_of_day_is_the_last_one(text: str, moment: datetime) -> None:
    now = datetime(2026, 3, 29, 12, 0, tzinfo=UTC)
    assert moment_of(text, now, UTC) == moment
    with pytest.raises(UsageError):
        moment_of("2027-01-01T00:00Z", now, UTC)
    with pytest.raises(UsageError):
        moment_of("soon", now, UTC)


# The handover.


@pytest.fixture
def eight_hours(tmp_path: Path) -> Handover:
    """Eight hours of two queues."""
    write(
        tmp_path, SAMPLES,
        *(sample(s, ready=4, age_seconds=2.0, errors=1) for s in range(0, 8 * 3600, 300)),
        {**sample(8 * 3600 - 60, ready=9, unknown="age_seconds"), "queue": "mail"},
        {
            **sample(8 * 3600 - 60, gap=800, capacity=1_000, push_per_second=1.0),
            "pop_per_second": 0.9, "queue": "ring", "design": "ring",
        },
    )  # fmt: skip
    findings = [finding(s, "poison" if 600 <= s < 1200 else None) for s in range(0, 2400, 300)]
    findings += [finding(s, "stuck_it", "critical") for s in (2400, 2700)]
    write(tmp_path, FINDINGS, *findings)
    write(
        tmp_path, ACTIONS,
        action(100, "note", 1, note="took over from *bob*"),
        action(200, "release", 2, operator=RECORDER, done=12, planned=12),
        action(300, "requeue", 3, done=5, planned=5),
    )  # fmt: skip
    return handover(tmp_path, "prod", None, 8 * 3600.0, BEGIN + timedelta(hours=8))


def test_a_handover_tells_what_happened_what_was_done_and_what_lasts(eight_hours: Handover) -> None:
    text = markdown([eight_hours], UTC)
    assert [(one.code, one.until is None) for one in eight_hours.findings] == [
        ("stuck_it", True),
        ("poison", False),
    ]
    for part in (
        "# Handover: prod",
        "**public.orders** critical `stuck_it`: stuck\\_it it is",
        "**public.orders** warning `poison`: poison it is (2026-03-27 01:10:00 UTC, for 10 min",
        "| public.mail | 9 | ? | · | · | · |",
        "| public.orders (5 min ago) | 4 | 2.0 s | · | · | 1 |",
        "- **public.ring**: full in 33 min 20 s at its last rates",
        "- release of **public.orders**: 1 time, 12 in all, the last at 2026-03-27 01:03:20 UTC",
        "note of **public.orders** by ann@ops: took over from \\*bob\\*",
        "requeue of **public.orders**: done, 5 of 5, by ann@ops",
        "(since 2026-03-27 01:40:00 UTC, 5 min); not examined since 2026-03-27 01:45:00 UTC",
    ):
        assert part in text, text


def test_a_handover_says_what_it_could_not_read(tmp_path: Path) -> None:
    text = markdown([handover(tmp_path, "prod", None, 3600.0, BEGIN)], UTC)
    assert "nothing was recorded here" in text
    assert "## Done by operators\n\n?" in text
    assert "## Happened, and is over\n\n?" in text
    assert "## In force, and until when\n\n?" in text


def test_decisions_say_until_when() -> None:
    span = TimeRange(BEGIN, at(3600))
    decision = Decision(
        "acknowledge", "poison", "public", "orders", "ann@ops", "ann", "known", at(0), None,
        push=False, severity="warning",
    )  # fmt: skip
    silence = Decision(
        "silence", "", "", "", "ann@ops", "ann", "", at(0), at(7200), push=False, severity=""
    )
    text = markdown([Handover("prod", span, decisions=(decision, silence))], UTC)
    assert (
        "**public.orders** `poison` acknowledged by ann@ops since 2026-03-27 01:00:00 UTC, "
        "until it ends or worsens: known"
    ) in text
    assert "until 2026-03-27 03:00:00 UTC" in text
    assert "- 2026-03-27 03:00:00 UTC: **every queue** is no longer silenced" in text


def test_events_are_json() -> None:
    event = Event(at(0), "note", "ann", "hi", at(0))
    assert event.as_json()["at"] == "2026-03-27T01:00:00+00:00"
    assert {AGE.name, POP.name} <= {*MEASURES}
