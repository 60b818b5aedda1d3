"""The repairs of findings, restricted to what was proven the first time, too."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from console.actions import execute
from console.actions.requeue import Release
from console.doctor.finding import Finding
from console.doctor.ring_repairs import RepairNumbers
from console.engines import Session
from console.monitor.filters import Filters
from console.monitor.message import Message
from console.monitor.owners import owner_of
from console.monitor.scan_query import MessageSource
from console.plan import Plan
from console.verbs.verb import Target

NOT_PROVEN = "not bound to a session that was gone at the first proof"


class ReleaseBound(Release):
    """Only claims that are bound to these sessions, which are gone. A session does not come back:
    with the claim unchanged, which each batch checks under its lock, the second proof holds."""

    def __init__(
        self, source: MessageSource, *, stuck_after_seconds: float, claimed_by: frozenset[str]
    ) -> None:
        super().__init__(source, stuck_after_seconds=stuck_after_seconds)
        self._claimed_by = claimed_by

    def excluded(self, session: Session, chosen: Sequence[Message]) -> Mapping[str, list[Message]]:
        left = {why: [*some] for why, some in super().excluded(session, chosen).items()}
        excluded = {id(message) for some in left.values() for message in some}
        queue = self.source.queue
        for message in chosen:
            owner = owner_of(message.claimed_by, queue)
            proven = message.claimed_by in self._claimed_by and owner is not None and owner.bound
            if not proven and id(message) not in excluded:
                left.setdefault(NOT_PROVEN, []).append(message)
        return left


@dataclass(frozen=True)
class TwiceProven:
    """The repair of a finding, as the first proof has it."""

    finding: Finding

    @cached_property
    def claimed_by(self) -> frozenset[str]:
        """Where the finding is about claims: the owners of bound ones, which are gone."""
        owners, repair = self.finding.evidence.get("by_owner"), self.finding.repair
        texts = [one["claimed_by"] for one in (owners if isinstance(owners, Sequence) else ())]
        queue = None if repair is None else repair.queue
        bound = {text: owner_of(text, queue) for text in texts}
        return frozenset(text for text, owner in bound.items() if owner and owner.bound)

    @property
    def possible(self) -> bool:
        return isinstance(self.finding.repair, RepairNumbers) or bool(self.claimed_by)

    @property
    def summary(self) -> str:
        return "" if self.finding.repair is None else self.finding.repair.summary

    @property
    def rows(self) -> int:
        """At most this many are repaired."""
        count = self.finding.evidence.get("count", self.finding.evidence.get("claims"))
        return count if isinstance(count, int) else 0

    def plan(self, target: Target) -> Plan:
        """Proves it again, now and where it runs. ConsoleError."""
        repair = self.finding.repair
        if isinstance(repair, RepairNumbers):
            return replace(repair, twice=True).plan(replace(target, queue=repair.queue))
        if repair is None or not self.claimed_by:
            raise TypeError(f"no such repair of {self.finding.code.name}")
        limit = target.thresholds_of(target.queue.name).stuck_after_seconds
        source = replace(target, queue=repair.queue).source()
        action = ReleaseBound(source, stuck_after_seconds=limit, claimed_by=self.claimed_by)
        return execute.plan(
            target.database, action, Filters(state="claimed", limit=max(1, self.rows))
        )
