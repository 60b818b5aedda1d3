"""The repairs of findings, restricted to what was proven the first time, too."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from console.actions import execute
from console.actions.requeue import Release
from console.doctor.finding import Finding
from console.doctor.repairs import VerbRepair
from console.doctor.ring_repairs import RepairNumbers
from console.engines import Session
from console.monitor.filters import Filters
from console.monitor.message_count import Group
from console.monitor.scan_query import MessageSource
from console.plan import Plan
from console.verbs.verb import Target

NOT_PROVEN = "not bound to a session that was gone at the first proof"


class ReleaseBound(Release):
    """Only claims that are bound to these sessions, which are gone. A session does not come back:
    with the claim unchanged, which each batch checks under its lock, the second proof holds."""

    def __init__(
        self, source: MessageSource, *, stuck_after_seconds: float, bound: Collection[str]
    ) -> None:
        """`bound`: as `claimed_by` names them."""
        super().__init__(source, stuck_after_seconds=stuck_after_seconds)
        self._bound = bound

    def groups_excluded(self, session: Session, groups: Sequence[Group]) -> Mapping[Group, str]:
        others = (group for group in groups if group.label not in self._bound)
        return dict.fromkeys(others, NOT_PROVEN) | dict(super().groups_excluded(session, groups))


@dataclass(frozen=True)
class TwiceProven:
    """The repair of a finding, as the first proof has it."""

    finding: Finding

    @property
    def possible(self) -> bool:
        repair = self.finding.repair
        if isinstance(repair, RepairNumbers):
            return repair.proof is not None
        return isinstance(repair, VerbRepair) and bool(repair.bound)

    @property
    def summary(self) -> str:
        return "" if self.finding.repair is None else self.finding.repair.summary

    @property
    def rows(self) -> int:
        """At most this many are repaired."""
        count = self.finding.evidence.get("count", self.finding.evidence.get("bound"))
        return count if isinstance(count, int) else 0

    def plan(self, target: Target) -> Plan:
        """Proves it again, now and where it runs. ConsoleError."""
        repair = self.finding.repair
        if isinstance(repair, RepairNumbers):
            return replace(repair, within=repair.proof).plan(replace(target, queue=repair.queue))
        assert isinstance(repair, VerbRepair)  # noqa: S101  # it is possible
        limit = target.thresholds_of(target.queue.name).stuck_after_seconds
        source = replace(target, queue=repair.queue).source()
        action = ReleaseBound(source, stuck_after_seconds=limit, bound=repair.bound.keys())
        only = next(iter(repair.bound)) if len(repair.bound) == 1 else None
        return execute.plan(target.database, action, Filters(state="claimed", claimed_by=only))
