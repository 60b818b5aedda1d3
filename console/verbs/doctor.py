"""The repairs of the doctor as a verb: planned, confirmed, then examined again."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from console.actions.execute import Control
from console.audit import Outcome, Subject
from console.doctor.consumption import Consumption
from console.doctor.examine import examine
from console.doctor.finding import Diagnosis, Repair
from console.doctor.repairs import ByVerb, repairs_of, tried
from console.engines import Database
from console.formats import numbered
from console.monitor.limits import DEFAULTS
from console.verbs.parameters import Placement
from console.verbs.verb import (
    OnProgress,
    Plan,
    Progress,
    Result,
    Target,
    Values,
    Verb,
    texts,
    values,
)


def planned(verb: Verb, database: Database, repair: ByVerb) -> Plan:
    """The verb's plan for the words of a repair."""
    # Whoever runs a repair has had it confirmed already.
    words = repair.words[: repair.words.index("--yes")] if "--yes" in repair.words else repair.words
    if any(one.placement is Placement.ARGUMENT for one in verb.parameters):
        words = (*words[:-1], "--", words[-1])  # a session's name may begin as an option does
    thresholds = replace(DEFAULTS, stuck_after_seconds=repair.stuck_after_seconds)
    target = Target(database, repair.queue, repair.rights, lambda _: thresholds)
    return verb.plan(target, values(verb, texts(verb, words)))


def _plan(target: Target, values: Values) -> Plan:
    """What the doctor would repair of a queue now."""
    del values
    diagnosis = _examined(target)
    repairs = repairs_of(diagnosis, target.rights)
    lines = [f"doctor {target.queue.label}: {diagnosis.verdict}"]
    lines += [f"  {one.grade}: {one.summary}" for one in diagnosis.findings]
    lines += [f"  not examined: {why}" for why in diagnosis.unseen]
    lines += [f"  {line}" for repair in repairs for line in repair.plan(target.database)]
    if not repairs:
        lines.append("  nothing here can be repaired without your judgement")
    subject = Subject.of(target.database, target.queue, "doctor --fix")
    return Plan(
        subject,
        target.queue,
        tuple(lines),
        by_name=True,
        run=partial(_repair, target, repairs),
        needed=bool(repairs),
        count=len(repairs),
    )


def _repair(
    target: Target, repairs: Sequence[Repair], control: Control, on_progress: OnProgress
) -> Result:
    """Each proven again first; one that runs is not cut off."""
    lines: list[str] = []
    outcome = Outcome.DONE
    for done, repair in enumerate(repairs):
        control.wait(0.0)
        if control.stopped:
            lines.append(f"{numbered(len(repairs) - done, 'repair')} not started")
            outcome = Outcome.STOPPED
            break
        on_progress(Progress(done, len(repairs), repair.summary))
        one = tried(repair, target.database)
        lines += one.lines
        outcome = Outcome.FAILED if one.failed else outcome
    return Result(outcome, (*lines, f"{target.queue.label}: {_examined(target).verdict}"))


def _examined(target: Target) -> Diagnosis:
    (found,) = examine(
        target.database,
        [target.queue],
        thresholds_of=target.thresholds_of,
        masks=target.masks,
        # Nobody waits for a second sample here: no repair comes of it.
        consumption=Consumption(waits=False),
    )
    return found


DOCTOR = Verb("doctor", "run the repairs that need no judgement", _plan, fixed=("--fix",))
