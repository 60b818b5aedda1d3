"""Repairs of findings, planned and run as `doctor --fix` does."""

from dataclasses import replace

from console.doctor.finding import Repair
from console.engines import Database
from console.monitor.limits import DEFAULTS, Thresholds
from console.plan import Plan
from console.rights import Rights
from console.verbs.verb import Target

IMPATIENT = replace(DEFAULTS, stuck_after_seconds=0.05)


def plan_repair(
    repair: Repair | None, database: Database, thresholds: Thresholds = IMPATIENT
) -> Plan:
    """With all rights."""
    assert repair is not None
    return repair.plan(Target(database, repair.queue, Rights.ADMIN, lambda _: thresholds))


def carry_out(
    repair: Repair | None, database: Database, thresholds: Thresholds = IMPATIENT
) -> list[str]:
    """The lines of its result. ConsoleError."""
    return list(plan_repair(repair, database, thresholds).run_to_end().lines)
