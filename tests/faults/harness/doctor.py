"""What the doctor finds on a queue, and its repairs."""

from typing import Any

from console import catalog
from console.catalog import Queue
from console.doctor.context import CheckGroup, check_context
from console.doctor.diagnose import diagnose
from console.doctor.finding import Diagnosis, Finding
from console.doctor.stopped_consumers import ConsumptionHistory
from console.engines import Database
from console.monitor.limits import DEFAULTS, Severity, Thresholds
from tests.contract.messages import FILL
from tests.tools.repairs import IMPATIENT, carry_out, plan_repair

_LINE = 125
"""A summary is one line of a screen: about 100 characters, and the names of a queue in it."""


class Examined:
    """A queue that a test breaks, and the doctor examines and repairs."""

    database: Database
    queue: Queue

    @property
    def known(self) -> Queue:
        """As the catalog has it now."""
        with self.database.transaction("find the queue", read_only=True) as connection:
            return catalog.find(connection, self.queue.name, self.queue.schema)

    def found(self, checks: CheckGroup, queue: Queue | None = None, **known: Any) -> list[Finding]:
        """By these checks alone, all of which could be made."""
        with check_context(self.database, queue or self.queue, **known) as context:
            findings = list(checks.run(context))
        assert context.unseen == []
        assert {finding.code for finding in findings} <= set(checks.codes)
        return findings

    def diagnosis(
        self, thresholds: Thresholds = DEFAULTS, queue: Queue | None = None, **known: Any
    ) -> Diagnosis:
        """By all checks."""
        (found,) = diagnose(
            self.database, [queue or self.queue], thresholds_of=lambda _: thresholds, **known
        )
        return found

    def diagnosed(
        self, thresholds: Thresholds = DEFAULTS, queue: Queue | None = None, **known: Any
    ) -> Diagnosis:
        """The diagnosis without stopped consumers (see `test_doctor_consumption`)."""
        known = {"consumption": ConsumptionHistory(3600.0, waits=False), **known}
        found = self.diagnosis(thresholds, queue, **{"patience_seconds": 2.0, **known})
        for finding in found.findings:
            assert len(finding.summary) <= _LINE, finding.summary
            assert "\n" not in finding.summary
        return found

    def codes(self, thresholds: Thresholds = DEFAULTS, **known: Any) -> list[str]:
        """The codes of all findings."""
        return codes_of(self.diagnosed(thresholds, **known))

    def finding(self, code: str, thresholds: Thresholds = DEFAULTS, **known: Any) -> Finding:
        """The only finding of that code."""
        return finding_of(self.diagnosed(thresholds, **known), code)

    def repair(
        self,
        finding: Finding,
        *,
        unattended: bool | None = None,
        thresholds: Thresholds = IMPATIENT,
    ) -> list[str]:
        """Run its repair; `unattended`: whether --fix has to run it."""
        assert finding.repair is not None
        assert finding.repair.summary
        assert unattended in {None, finding.repair.unattended}
        assert plan_repair(finding.repair, self.database).lines
        return carry_out(finding.repair, self.database, thresholds)

    def repaired(self, code: str, *, unattended: bool | None = None) -> Finding:
        """Repair the finding of that code, after which all is clear."""
        finding = self.finding(code)
        self.repair(finding, unattended=unattended)
        assert self.diagnosed().verdict == "all clear"
        return finding


def codes_of(diagnosis: Diagnosis) -> list[str]:
    return [finding.code.name for finding in diagnosis.findings]


def without_notes(diagnosis: Diagnosis) -> list[Finding]:
    """The findings that are more than notes."""
    return [finding for finding in diagnosis.findings if finding.code.severity is not Severity.NOTE]


def finding_of(diagnosis: Diagnosis, code: str) -> Finding:
    """The only finding of that code, checked for completeness."""
    (finding,) = [one for one in diagnosis.findings if one.code.name == code]
    assert finding.summary
    assert finding.evidence
    assert finding.cause
    assert finding.consequence
    assert FILL not in str(finding.as_json()), "no finding shows a payload"
    return finding


def evidence_of(finding: Finding) -> dict[str, Any]:
    """The evidence, with untyped values."""
    return dict(finding.evidence)


def numbers(finding: Finding) -> list[int]:
    """The numbers of a ring that a finding names."""
    runs = evidence_of(finding)["numbers"]
    named = [number for first, last in runs for number in range(first, last + 1)]
    assert finding.evidence["count"] == len(named)
    return named
