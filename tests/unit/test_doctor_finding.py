"""Verdicts, and checks that need figures only."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console import sql
from console.cli.verbs import cli
from console.designs import DESIGNS
from console.doctor import claims, diagnose, general
from console.doctor.checks import CODES
from console.doctor.context import CheckContext, command, counted, run_check
from console.doctor.finding import SEVERITIES, Code, Diagnosis, Finding
from console.doctor.stopped_consumers import Position
from console.engines import PRODUCTS, Database, Session
from console.errors import ConnectionFailedError, RefusedError
from console.monitor.limits import Severity
from console.monitor.sample import QueueSample
from console.monitor.snapshot import QueueSnapshot, snapshot
from tests.unit.test_snapshot import NOTHING, RING, queue

QUEUE = queue("fifo")
RING_QUEUE = queue("ring")
NOW = datetime(2026, 11, 22, tzinfo=UTC).timestamp()


@dataclass(frozen=True)
class Nothing:
    """A repair that does nothing."""

    summary: str = "sing"
    command: str = ""
    unattended: bool = True
    requires_name: bool = False

    def plan(self, database: Database) -> Sequence[str]:  # noqa: ARG002  # of the protocol
        return []

    def run(self, database: Database) -> Sequence[str]:  # noqa: ARG002  # of the protocol
        return []


FINDINGS = st.builds(
    Finding,
    code=st.builds(Code, st.text(min_size=1), st.sampled_from(SEVERITIES), st.text()),
    summary=st.text(),
    evidence=st.dictionaries(st.text(), st.integers() | st.text() | st.lists(st.integers())),
    since=st.none() | st.datetimes(timezones=st.just(UTC)),
    repair=st.none() | st.just(Nothing()),
)


@given(st.lists(FINDINGS, max_size=4), st.lists(st.text(min_size=1), max_size=2))
def test_the_verdict_is_the_highest_severity_and_all_clear_needs_every_check(
    findings: list[Finding], unseen: list[str]
) -> None:
    one = Diagnosis(QUEUE, tuple(findings), tuple(unseen))
    severities = {finding.code.severity for finding in findings}
    assert (one.verdict == "all clear") == (not findings and not unseen)
    assert (one.verdict == "critical") == (Severity.CRITICAL in severities)
    assert (one.verdict == "warning") == (max(severities, default=None) is Severity.WARNING)
    assert one.healthy == (one.verdict in {"all clear", "notes"})
    assert not (one.healthy and unseen)


@given(FINDINGS)
def test_json_output_can_be_read_back(finding: Finding) -> None:
    parsed = json.loads(json.dumps(finding.as_json()))
    assert set(parsed) == {
        *("code", "severity", "since", "summary", "evidence", "cause", "consequence", "repair"),
        *("judgement", "runbook", "estimated", "silenced"),
    }
    assert parsed["severity"] in {"critical", "warning", "note"}
    assert (parsed["repair"] is None) == (finding.repair is None)
    assert parsed["judgement"].startswith("needs your judgement: ") == (finding.repair is None)
    if parsed["since"] is not None:
        assert datetime.fromisoformat(parsed["since"]) == finding.since


def test_codes_are_sorted_and_distinct_and_have_a_repair_or_advice() -> None:
    assert [-code.severity for code in CODES] == sorted(-code.severity for code in CODES)
    assert len({code.name for code in CODES}) == len(CODES)
    for code in CODES:
        assert code.name.isidentifier(), code
        assert code.name.islower(), code
        assert 0 < len(code.meaning) < 110, code
        assert code.repair or code.advice, code
        # A repair begins with its verb.
        assert not code.repair or re.split(r"[ ,:]", code.repair)[0] in cli.commands, code


# --------------------------------------------------------------------------------- unseen checks


def new_context() -> CheckContext:
    no_session: Session = None  # type: ignore[assignment]
    no_database: Database = None  # type: ignore[assignment]
    return CheckContext(no_database, no_session, QUEUE)


def test_a_refused_check_is_unseen_and_keeps_its_findings() -> None:
    finding = Finding(CODES[0], "something")
    context = new_context()

    def check(_: CheckContext) -> Iterator[Finding]:
        yield finding
        raise RefusedError("Could not look.", why="permission denied")

    assert list(run_check(context, "the moon", check)) == [finding]
    assert context.unseen == ["the moon: permission denied"]


def test_a_lost_connection_is_raised_and_is_no_finding() -> None:
    def check(context: CheckContext) -> Iterator[Finding]:
        yield Finding(CODES[0], "something")
        raise ConnectionFailedError("Gone.")

    with pytest.raises(ConnectionFailedError):
        list(run_check(new_context(), "the moon", check))


def test_a_command_is_quoted_for_the_shell() -> None:
    assert command(QUEUE, "upgrade") == "dbq-console upgrade q"
    odd = replace(QUEUE, name="it's -- mine", schema="sales")
    assert command(odd, "release", "--force") == (
        "dbq-console release 'it'\"'\"'s -- mine' --force --schema sales"
    )


@pytest.mark.parametrize(("number", "text"), [(1, "1 row"), (2, "2 rows"), (10_000, "10,000 rows")])
def test_a_capped_count_is_shown_as_more_than_its_cap(number: int, text: str) -> None:
    assert counted(number, "row") == text
    assert counted(10_001, "row") == "more than 10,000 rows"


def test_each_engine_has_its_own_terms() -> None:
    """How a key is created, and what removes dead rows."""
    assert PRODUCTS["postgresql"].cleaner == "vacuum"
    assert PRODUCTS["mssql"].cleaner == "ghost cleanup"
    assert PRODUCTS["postgresql"].key_by_hand == ""  # there the doctor creates it
    assert "ONLINE = ON" in PRODUCTS["mssql"].key_by_hand
    named = [code.name for code in CODES if "vacuum" in code.meaning]
    assert not named, "read on both engines: say it without vacuum; a finding has product.cleaner"


# ---------------------------------------------------------------------------------------- a ring


def ring(gap: int, push: float, pop: float, net: tuple[float, float] | None) -> QueueSnapshot:
    row = replace(RING, next_push=1 + gap, next_pop=1, capacity=10_000)
    sampled = snapshot(QueueSample(queue("ring"), row), "c")
    return replace(sampled, push_per_second=push, pop_per_second=pop, filling_per_second=net)


def codes_of(sampled: QueueSnapshot) -> list[str]:
    return [finding.code.name for finding in general.check_full(sampled, RING_QUEUE)]


@pytest.mark.parametrize(
    ("sampled", "codes"),
    [
        (ring(9_000, 100.0, 50.0, (45.0, 55.0)), ["full_soon"]),
        (ring(6_000, 10.0, 5.0, (4.0, 6.0)), ["full_within_hour"]),
        (ring(6_000, 10.0, 9.99, (0.009, 0.011)), []),
        (ring(9_000, 100.0, 50.0, (-5.0, 105.0)), []),
        (ring(9_000, 1000.0, 950.0, (20.0, 80.0)), []),
        (ring(9_000, 50.0, 100.0, (-55.0, -45.0)), []),
        (ring(1_000, 100.0, 50.0, (45.0, 55.0)), []),
        (ring(10_000, 100.0, 50.0, (45.0, 55.0)), []),
        (ring(9_000, 100.0, 50.0, None), []),
    ],
    ids=[
        *("in minutes", "in half an hour", "in days", "perhaps", "by chance"),
        *("it empties", "a burst", "it is full", "unknown"),
    ],
)
def test_a_ring_fills_only_if_the_entire_range_of_its_rate_says_so(
    sampled: QueueSnapshot, codes: list[str]
) -> None:
    assert codes_of(sampled) == codes


@given(
    st.integers(0, 12_000),
    st.floats(0, 1e4),
    st.floats(0, 1e4),
    st.none() | st.tuples(st.floats(-1e4, 1e4), st.floats(-1e4, 1e4)),
)
def test_a_ring_that_may_never_fill_is_not_reported(
    gap: int, push: float, pop: float, net: tuple[float, float] | None
) -> None:
    ordered = None if net is None else (min(net), max(net))
    for finding in general.check_full(ring(gap, push, pop, ordered), RING_QUEUE):
        assert ordered is not None
        assert ordered[0] > 0
        latest = finding.evidence["full_in_latest_seconds"]
        assert isinstance(latest, float)
        limit = 300.0 if finding.code is general.FULL_SOON else 3600.0
        assert latest < limit


# ---------------------------------------------------------------------------------------- errors


def errors(
    recent: int, before: int, before_seconds: float = 80_000.0, recent_seconds: float = 599.0
) -> general.Errors:
    return general.Errors(recent, recent_seconds, "1", "no", before, before_seconds)


@pytest.mark.parametrize(
    ("figures", "is_burst"),
    [
        (errors(0, 0), False),
        (errors(9, 9), False),
        (errors(10, 0), True),
        (errors(10, 1_430), False),
        (errors(70, 1_370), True),
        (errors(2_000, 10_001, 3_000.0), False),
        (errors(9_000, 10_001, 3_000.0), True),
        (errors(10_001, 10_001, 360.0, 360.0), False),
        (errors(10_001, 10_001, 36_000.0, 360.0), True),
        (errors(10_001, 10_001, 0.0), False),
    ],
)
def test_a_burst_is_many_errors_and_far_more_than_usual(
    figures: general.Errors, is_burst: bool
) -> None:
    assert figures.is_burst == is_burst


@given(st.integers(0, 50))
def test_errors_at_a_steady_rate_are_no_burst(in_ten_minutes: int) -> None:
    assert not errors(in_ten_minutes, 143 * in_ten_minutes).is_burst


# ------------------------------------------------------------------------------ values of engines


def test_arrays_are_read_from_lists_and_from_json() -> None:
    assert sql.texts(["1", "2"]) == sql.texts('[{"id": "1"}, {"id": "2"}]') == ["1", "2"]
    assert sql.texts(None) == []


@pytest.mark.parametrize(
    ("next_", "overdue"),
    [
        ("2026-01-01 00:00:00.5+00", True),
        ("2026-01-01 05:30:00+05:30", True),
        ("2026-01-01T00:00:00.1234567", True),
        ("2999-01-01 00:00:00+00", False),
        ("infinity", False),
        (None, False),
    ],
)
def test_overdue_seconds_are_read_from_each_format_of_a_time(
    next_: str | None, overdue: bool
) -> None:
    assert (Position(NOW, None, next_, 0, 1.0).overdue_seconds > 86_400) == overdue


# -------------------------------------------------------------------------------- which designs


@pytest.mark.parametrize("design", DESIGNS)
def test_claims_are_checked_wherever_messages_can_be_claimed(design: str) -> None:
    keeps = {"claim", "status", "split"}
    assert claims.CHECKS.applies(queue(design)) == (design in keeps)
    assert claims.CHECKS.applies(queue("ring", in_hand="on"))


def test_rates_are_measured_only_of_a_ring_that_may_fill() -> None:
    assert not diagnose.may_fill(ring(100, 1.0, 1.0, None))
    unrated = replace(ring(9_000, 0.0, 0.0, None), push_per_second=None)
    assert diagnose.may_fill(unrated)
    assert not diagnose.may_fill(snapshot(QueueSample(QUEUE, NOTHING), "c"))
