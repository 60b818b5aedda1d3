"""Diagnosing and repairing a ring."""

import psycopg

from console.doctor.context import check_context
from console.doctor.finding import Finding
from console.doctor.ring import CHECKS
from console.errors import BusyError
from tests.faults.ring_tools import Ring
from tests.tools.repairs import carry_out, plan_repair


def diagnose_ring(ring: Ring, patience_seconds: float = 10.0) -> tuple[list[Finding], list[str]]:
    """The findings, and the parts that could not be checked."""
    with check_context(ring.database, ring.queue, patience_seconds=patience_seconds) as context:
        findings = list(CHECKS.run(context))
    assert {finding.code for finding in findings} <= set(CHECKS.codes)
    assert findings == sorted(findings, key=lambda finding: -finding.code.severity)
    return findings, context.unseen


def findings_by_code(ring: Ring) -> dict[str, Finding]:
    """The findings by code; everything could be checked."""
    findings, unseen = diagnose_ring(ring)
    assert unseen == []
    codes = [finding.code.name for finding in findings]
    assert len(codes) == len(set(codes))
    return dict(zip(codes, findings, strict=True))


def numbers(finding: Finding) -> list[int]:
    """The numbers that a finding names."""
    runs = finding.evidence["numbers"]
    assert isinstance(runs, list)
    named = [number for first, last in runs for number in range(first, last + 1)]
    assert finding.evidence["count"] == len(named)
    return named


def repair_all(ring: Ring) -> list[str]:
    """Run all unattended repairs; their lines."""
    lines: list[str] = []
    for finding in findings_by_code(ring).values():
        if finding.repair is not None and finding.repair.unattended:
            assert finding.repair.summary
            assert plan_repair(finding.repair, ring.database).lines
            lines += carry_out(finding.repair, ring.database)
    return lines


def repair_finding(ring: Ring, finding: Finding) -> None:
    """Run the repair of one finding, then the unattended ones; afterwards nothing is wrong."""
    assert finding.repair is not None
    assert plan_repair(finding.repair, ring.database).lines
    assert carry_out(finding.repair, ring.database)
    repair_all(ring)
    assert findings_by_code(ring) == {}


def try_repairs(ring: Ring) -> int:
    """How many repairs changed something; those blocked by an open transaction are skipped."""
    done = 0
    findings, _ = diagnose_ring(ring, patience_seconds=2.0)
    for finding in findings:
        assert finding.code.name not in {"slot_mismatch", "slot_count", "sequence_behind"}, finding
        if finding.repair is not None and finding.repair.unattended:
            try:
                done += bool(carry_out(finding.repair, ring.database))
            except BusyError:
                continue
    return done


def fill(ring: Ring, connection: psycopg.Connection, pushes: int, pops: int) -> list[str]:
    """Push and pop; the payloads that are left."""
    sent = [f"message {number}" for number in range(1, pushes + 1)]
    assert None not in [
        number
        for start in range(0, pushes, 500)
        for number in ring.push_many(connection, sent[start : start + 500])
    ]
    taken = [ring.pop(connection) for _ in range(pops)]
    assert [message.payload for message in taken if message] == sent[:pops]
    return sent[pops:]
