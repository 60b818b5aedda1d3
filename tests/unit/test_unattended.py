"""The policy of repairs without a person: what is read back from the audit, and when it stops."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.catalog import Queue
from console.catalog.audit import Entry
from console.config.file_reader import read
from console.config.profile import Settings
from console.designs import DESIGNS
from console.doctor.checks import CODES
from console.doctor.finding import Finding
from console.doctor.repairs import release_claims
from console.features.history import segments
from console.features.history.reader import RecordReader
from console.features.history.segments import ACTIONS, FINDINGS, TimeRange
from console.features.unattended.past import dry_run
from console.features.unattended.policy import (
    CLAIMS_GONE,
    HOLES,
    LEAST_UNUSUAL,
    MANY_TIMES_USUAL,
    ORPHANS,
    REPAIRABLE,
    RETURNS,
    STOP,
    Audited,
    Past,
    Policy,
    Stop,
    detail,
    is_same,
    must_stop,
    operator_name,
    repairs_of,
    stops_of,
    subjects,
)
from console.monitor.limits import Severity

QUEUE = Queue("public", "orders", DESIGNS["claim"], {}, {})
NOW = datetime(2026, 3, 29, 3, 0, tzinfo=UTC)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
ALL = Policy("always", "always", "bound")
ENTRY = Entry(
    action_id=1,
    schema="public",
    queue="orders",
    verb="repair",
    started_at=NOW,
    last_at=NOW,
    ended_at=NOW,
    operator=operator_name("ops@db1", 7),
    database_user="app",
    session="pid=1 start=2",
    connection="shop",
    filters="",
    cutoff=None,
    planned=1,
    selected=1,
    done=1,
    skipped=0,
    failed=0,
    outcome="done",
    detail="",
)
RECORDED: Any = st.sampled_from(REPAIRABLE)


def entry(ago: timedelta, **more: object) -> Entry:
    return replace(ENTRY, started_at=NOW - ago, **more)  # type: ignore[arg-type]


def repairs(count: int, ago: timedelta, kind: str = "orphans", rows: int = 1) -> list[Past]:
    return [Past(NOW - ago, kind, rows)] * count


# --------------------------------------------------------------------------- what may be repaired


def test_every_code_is_one_of_the_doctors_and_nothing_is_allowed_unless_said() -> None:
    known = {code.name for code in CODES}
    assert {code for kind in REPAIRABLE for code in kind.codes} <= known
    allowed = {name for name in known if Policy().kind_of(name)}
    assert allowed == {"holes_pile_up"}, "as every recorder of an operator does"
    assert {name for name in known if ALL.kind_of(name)} == {
        code for kind in REPAIRABLE for code in kind.codes
    }


def test_the_policy_is_that_of_the_queue_else_of_the_profile() -> None:
    text = """
[profiles.shop]
url = "postgresql://db/shop"
unattended = { orphans = "always", repairs_per_hour = 3 }
[profiles.shop.queues."jobs".unattended]
claims_gone = "bound"
library_rule = true
"""
    document = read(Path("x.toml"), text)
    assert document.mistakes == ()
    table = document.profiles["shop"]
    shop = Policy.of_settings(Settings([table.values]))
    assert shop == Policy(orphans="always", repairs_per_hour=3)
    jobs = Policy.of_settings(Settings([table.queues["jobs"], table.values]))
    assert jobs == replace(shop, claims_gone="bound", library_rule=True)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('unattended.claims_gone = "always"', "must be one of off, bound, not"),
        ("unattended.library_rule = true", "is not a known key"),
        ("unattended.repairs_per_hour = 0", "must be 1 or more"),
        ("unattended = true", "must be { orphans = ..., holes = ..."),
    ],
)
def test_a_wrong_policy_is_a_mistake(line: str, words: str) -> None:
    text = f'[profiles.shop]\nurl = "postgresql://db/shop"\n{line}\n'
    (mistake,) = read(Path("x.toml"), text).mistakes
    assert words in mistake.text


# --------------------------------------------------------------------- what the audit tells of it


@given(RECORDED, st.sets(st.text(st.characters(exclude_categories=["Cs"]), min_size=1)))
def test_what_was_repaired_is_read_back_from_the_audit(kind: Any, about: set[str]) -> None:
    text = detail(ALL, kind, sorted(about))
    (read_back,) = repairs_of([entry(MINUTE, detail=f"parked 3 orphans; {text}", done=3)])
    assert read_back == Past(NOW - MINUTE, kind.key, 3, frozenset(about))


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_no_other_detail_is_taken_for_one(text: str) -> None:
    (read_back,) = repairs_of([entry(MINUTE, detail=text)])
    assert read_back.kind == ""


def test_a_finding_is_about_runs_of_numbers_or_messages() -> None:
    code = CODES[0]
    assert subjects(Finding(code, "", {"numbers": [[5, 9], [12, 12]]})) == ("5-9", "12")
    owners = {"pid=1": ["a", "b"], "pid=2": ["c"]}
    release = release_claims(QUEUE, 300.0, "gone", owners)
    assert subjects(Finding(code, "", repair=release)) == ("a", "b", "c")
    assert subjects(Finding(code, "")) == ()


@pytest.mark.parametrize(
    ("before", "now", "same"),
    [([[1, 4]], [[4, 9]], True), ([[1, 4]], [[5, 9]], False), ([], [[5, 9]], True)],
)
def test_a_finding_is_the_same_while_some_of_its_numbers_are(
    before: Any, now: Any, same: bool
) -> None:
    findings = [Finding(CODES[0], "", {"numbers": numbers}) for numbers in (before, now)]
    assert is_same(ORPHANS, *findings) is same


# ------------------------------------------------------------------------------- when it stops


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 400)), max_size=60))
def test_never_more_than_the_budget_of_an_hour(found: Sequence[tuple[int, int]]) -> None:
    """Whatever is found and when: in no hour are more repairs, or rows, than the policy says."""
    policy = replace(ALL, repairs_per_hour=5, rows_per_hour=500)
    done: list[Past] = []
    for minute, rows in sorted(found):
        now = NOW + minute * MINUTE
        if must_stop(policy, ORPHANS, [], rows, Audited(now, done)) is None:
            done.append(Past(now, "orphans", rows))
    for one in done:
        within = [other for other in done if timedelta() <= other.at - one.at < HOUR]
        assert len(within) <= 5
        assert sum(other.rows for other in within) <= 500


def test_what_comes_back_for_the_third_time_is_left_to_a_person() -> None:
    past = [Past(NOW - n * MINUTE, "claims_gone", 1, frozenset({"17"})) for n in (50, 30, 10)]
    assert len(past) == RETURNS
    assert must_stop(ALL, CLAIMS_GONE, ["17"], 1, Audited(NOW, past[1:])) is None
    stop = must_stop(ALL, CLAIMS_GONE, ["16", "17"], 1, Audited(NOW, past))
    assert stop is not None
    assert stop.lasts
    assert "message 17 came back after 3 repairs" in stop.reason
    assert must_stop(ALL, CLAIMS_GONE, ["16"], 1, Audited(NOW, past)) is None
    parked = [Past(NOW - n * MINUTE, "orphans", 9, frozenset({"5-9", "12"})) for n in (50, 30, 10)]
    stop = must_stop(ALL, ORPHANS, ["10-11", "7"], 1, Audited(NOW, parked))
    assert stop is not None
    assert "number 7 came back" in stop.reason
    assert must_stop(ALL, ORPHANS, ["10-11", "13"], 1, Audited(NOW, parked)) is None
    of_others = [replace(one, kind="orphans") for one in past]
    assert must_stop(ALL, CLAIMS_GONE, ["17"], 1, Audited(NOW, of_others)) is None


def test_far_more_than_usual_is_left_to_a_person_but_only_where_something_is_usual() -> None:
    most = MANY_TIMES_USUAL * 2
    assert most == LEAST_UNUSUAL, "with two in the busiest hour"
    latest = repairs(most + 1, 5 * MINUTE)
    usual = repairs(2, 30 * HOUR)
    assert must_stop(ALL, ORPHANS, [], 1, Audited(NOW, latest)) is None, (
        "nothing is known of before"
    )
    assert must_stop(ALL, ORPHANS, [], 1, Audited(NOW, [*latest[1:], *usual])) is None
    stop = must_stop(ALL, ORPHANS, [], 1, Audited(NOW, [*latest, *usual]))
    assert stop is not None
    assert stop.lasts
    assert must_stop(ALL, HOLES, [], 1, Audited(NOW, [*latest, *usual])) is None


@pytest.mark.parametrize("lasts", [True, False])
def test_a_stop_ends_with_the_next_action_of_a_person_or_with_its_hour(lasts: bool) -> None:
    stop = Stop("orphans", "repairs: too many of them", lasts)
    recorded = entry(59 * MINUTE, verb=STOP, detail=stop.text)
    found = stops_of([recorded], NOW - HOUR, NOW)
    assert {key: of for key, (_, of) in found.items()} == {"orphans": stop}
    assert stops_of([recorded], NOW - MINUTE, NOW) == {}
    later = stops_of([recorded], None, NOW + 2 * MINUTE)
    assert bool(later) is lasts


def test_what_came_back_before_a_person_acted_is_dealt_with() -> None:
    """Else the next attempt would stop again, whatever the person did."""
    returned = [Past(NOW - n * MINUTE, "claims_gone", 1, frozenset({"17"})) for n in (50, 30, 10)]
    after = Audited(NOW, returned, person=NOW - 5 * MINUTE)
    assert must_stop(ALL, CLAIMS_GONE, ["17"], 1, after) is None
    again = [Past(NOW - n * MINUTE, "claims_gone", 1, frozenset({"17"})) for n in (3, 2, 1)]
    assert must_stop(ALL, CLAIMS_GONE, ["17"], 1, replace(after, repairs=again)) is not None
    unusual = [*repairs(9, 10 * MINUTE), *repairs(2, 30 * HOUR)]
    assert must_stop(ALL, ORPHANS, [], 1, Audited(NOW, unusual)) is not None
    assert must_stop(ALL, ORPHANS, [], 1, replace(after, repairs=unusual)) is None


def test_an_attempt_that_found_nothing_left_is_no_return() -> None:
    past = [Past(NOW - n * MINUTE, "orphans", 0, frozenset({"17"})) for n in (50, 30, 10)]
    assert must_stop(ALL, ORPHANS, ["17"], 1, Audited(NOW, past)) is None


# ------------------------------------------------------------------------------- on the past


def test_the_past_tells_what_it_would_have_done(tmp_path: Path) -> None:
    """Four hours: orphans that an operator repaired after 50 minutes, a claim that nobody did, more
    than the budget allows, and an orphan that was gone before a second proof."""

    def finding(minute: int, code: str | None, summary: str = "") -> dict[str, object]:
        at = NOW + minute * MINUTE
        return {"at": at, "schema": "public", "queue": "jobs", "code": code, "summary": summary}

    segment = segments.Segment(tmp_path, "shop", NOW)
    rows = [finding(0, None), *(finding(n, "orphan", "21 orphans: 507-527") for n in range(10, 60))]
    rows += [finding(60, None), finding(70, "claims_gone", "1 claim whose consumer disconnected")]
    rows += [finding(71, None), finding(72, "orphan", "1,234 orphans: 1-1234"), finding(73, None)]
    short = finding(80, "orphan", "1 orphan: 9")
    rows += [short, {**finding(80, None), "at": NOW + 80 * MINUTE + timedelta(seconds=5)}]
    segment.write(FINDINGS, rows)
    acted = {"at": NOW + 59 * MINUTE, "schema": "public", "queue": "jobs", "verb": "repair"}
    segment.write(ACTIONS, [{**acted, "action_id": 1, "operator": "ann@db1", "outcome": "done"}])
    segment.leave()
    span = TimeRange(NOW, NOW + 4 * HOUR)
    policy = replace(ALL, rows_per_hour=1_000)
    found = dry_run(RecordReader(tmp_path, "shop"), span, lambda _: policy)
    first, second, third = found.findings
    assert (first.code, first.rows, first.operator) == ("orphan", 21, "ann@db1")
    assert first.sooner_seconds == 50 * 60 - 10
    assert (second.code, second.rows, second.operator) == ("claims_gone", 1, "")
    assert (third.rows, third.operator) == (1_234, "")
    assert third.left.startswith("rows_per_hour = 1,000: 1 used in the last hour")
    assert found.not_woken == 2, "an orphan is critical, a claim that is gone a warning"
    nothing = dry_run(RecordReader(tmp_path, "shop"), span, lambda _: Policy())
    assert nothing.findings == ()
    assert Severity.WARNING > Severity.NOTE


def test_what_stopped_in_the_past_goes_on_after_an_hour(tmp_path: Path) -> None:
    def finding(minute: int, rows: int) -> dict[str, object]:
        at, code = NOW + minute * MINUTE, "orphan" if rows else None
        return {"at": at, "schema": "public", "queue": "jobs", "code": code,
                "summary": f"{rows} orphans: 1-{rows}"}  # fmt: skip

    segment = segments.Segment(tmp_path, "shop", NOW)
    found = [(10, 21), (11, 0), (20, 5), (21, 0), (75, 5), (76, 0)]
    segment.write(FINDINGS, [finding(minute, rows) for minute, rows in found])
    segment.leave()
    policy = replace(ALL, rows_per_hour=20)
    span = TimeRange(NOW, NOW + 4 * HOUR)
    past = dry_run(RecordReader(tmp_path, "shop"), span, lambda _: policy).findings
    assert [bool(one.left) for one in past] == [True, True, False]
