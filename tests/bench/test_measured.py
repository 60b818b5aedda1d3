"""Figures of a round from its call log, medians of rounds, and the messages of the bench."""

import statistics
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.features.bench.candidate import Candidate
from console.features.bench.results import CandidateResult, comparisons
from console.load.call_log import (
    DAMAGED,
    HEAD,
    NUMBERS,
    SMALLEST,
    CallLog,
    Calls,
    codes_and_times,
    filler,
    head,
)
from console.load.round_figures import RoundFigures, measured
from console.load.worker_round import Times

TIMES = Times(produce=0, consume=100, measure=1_000_000, stop=3_000_000)
POINTS = 4

pops = st.lists(
    st.tuples(st.integers(0, 4_000_000), st.integers(1, 5), st.integers(1, 10_000)), max_size=30
)


def call_log_of(calls: list[tuple[int, int, int]]) -> CallLog:
    call_log = CallLog()
    for at, messages, took in sorted(calls):
        call_log.pops.add(at, 0, messages, took)
        call_log.heads += b"0" * 38 * messages
    return call_log


@given(pops)
def test_only_the_measured_time_counts(calls: list[tuple[int, int, int]]) -> None:
    call_log = call_log_of(calls)
    pushed = pa.array([at - 500 for at, n, _ in sorted(calls) for _ in range(n)], pa.int64())
    found = measured(call_log, None, pushed, TIMES, POINTS)
    inside = [call for call in sorted(calls) if TIMES.measure <= call[0] < TIMES.stop]
    assert found.messages == sum(n for _, n, _ in inside)
    assert found.messages_per_second == found.messages / 2
    assert sum(found.curve) * found.seconds / POINTS == pytest.approx(found.messages)
    assert found.messages_total == sum(n for _, n, _ in calls)
    if inside:
        took = statistics.median(took for *_, took in inside) / 1000
        assert found.pop_ms is not None
        assert found.pop_ms.p50 == pytest.approx(took, abs=0.001)
        assert found.pop_ms.p50 <= found.pop_ms.p95 <= found.pop_ms.p99
        assert found.end_to_end_ms is not None
        assert {found.end_to_end_ms.p50, found.end_to_end_ms.p99} == {0.5}
    else:
        assert found.pop_ms is None
        assert found.end_to_end_ms is None
    assert found.push_ms is None


@given(pops, pops)
def test_call_logs_are_merged(
    first: list[tuple[int, int, int]], second: list[tuple[int, int, int]]
) -> None:
    one, two = call_log_of(first), call_log_of(second)
    one.cpu_seconds, one.errors = 0.5, ["no"]
    two.cpu_seconds, two.empty, two.errors = 0.25, 3, ["no", "never"]
    merged = CallLog.merged([one, two])
    assert [*merged.pops.at_us] == [*one.pops.at_us, *two.pops.at_us]
    assert (merged.cpu_seconds, merged.empty, merged.errors) == (0.75, 3, ["no", "never"])
    two.cpu_seconds = None
    assert CallLog.merged([one, two]).cpu_seconds is None


def test_a_call_log_can_be_saved_and_loaded(tmp_path: Path) -> None:
    call_log = call_log_of([(5, 2, 7), (9, 1, 3)])
    call_log.pushes.add(4, 3, 2, 1)
    call_log.pushes_in_doubt, call_log.errors, call_log.full = [(1, 2)], ["ä"], 4
    call_log.save(tmp_path / "journal")
    assert CallLog.load(tmp_path / "journal") == call_log
    assert len(Calls()) == 0


def result(name: str, batch: int, *rates: float, carries: bool = True) -> CandidateResult:
    candidate = Candidate(name, name, batch, "", carries=carries)
    one = {"push_ms": None, "pop_ms": None, "end_to_end_ms": None, "curve": (), "verdict": None}
    counts = dict.fromkeys(("empty", "full", "unfinished", "failed_calls"), 0)
    rest = {
        "errors": (),
        "client_cpu_seconds": None,
        "seconds": 1.0,
        "messages_total": 1,
        "messages": 1,
    }
    found = [RoundFigures(messages_per_second=rate, **one, **counts, **rest) for rate in rates]  # type: ignore[arg-type]
    return CandidateResult(candidate, tuple(found))


def test_medians_and_ratios() -> None:
    results = [
        result("naive", 1, 90.0, 110.0, 100.0),
        result("ring", 1, 700.0, 800.0, 900.0),
        result("ring", 100, 10_000.0),
        result("fifo", 100, 4_000.0),
        result("floor", 1, 2_000.0, carries=False),
    ]
    assert results[0].as_json()["messages_per_second"] == {"median": 100, "min": 90, "max": 110}
    # Unknown is null, never zero.
    assert results[0].as_json()["cpu"] == {"server": None, "clients": None}
    assert results[0].as_json()["waits"] is None
    assert {one.description: one.ratio for one in comparisons(results)} == {
        "ring / naive, one at a time": 8.0,
        "ring in batches of 100 / naive, one at a time": 100.0,
        "ring in batches of 100 / fifo so too": 2.5,
        "ring / half the single-row updates by key": 0.8,
    }


# -- messages: pushed ones are identified, any others are recognised as damaged

heads = st.builds(
    lambda p, n, t: (p, n, t, head(p, n, t)),
    st.integers(0, 9_999),
    st.integers(0, NUMBERS - 1),
    st.integers(0, 10**16 - 1),
)


@given(st.lists(heads, max_size=20))
def test_the_heads_of_messages_are_read_as_written(
    written: list[tuple[int, int, int, bytes]],
) -> None:
    codes, times = codes_and_times(b"".join(one[3] for one in written))
    assert codes.to_pylist() == [p * NUMBERS + n for p, n, _, _ in written]
    assert times.to_pylist() == [t for _, _, t, _ in written]


@given(heads, st.integers(0, HEAD - 1), st.integers(0, 255))
def test_one_changed_byte_is_detected(
    written: tuple[int, int, int, bytes], at: int, byte: int
) -> None:
    *_, intact = written
    changed = intact[:at] + bytes([byte]) + intact[at + 1 :]
    codes, _ = codes_and_times(changed + intact)
    assert (codes[0].as_py() == DAMAGED) == (changed != intact)
    assert codes[1].as_py() != DAMAGED


@given(st.integers(SMALLEST, 5000))
def test_a_payload_has_the_requested_length(length: int) -> None:
    assert len(head(1, 2, 3) + filler(length)) == length
    assert filler(length) == filler(length)
