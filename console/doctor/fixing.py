"""Mending what needs no judgement, as one work: planned, confirmed, then examined again."""

from collections.abc import Sequence
from dataclasses import dataclass

from console.actions.audit import Outcome, Subject
from console.actions.execute import Control
from console.actions.work import Ended, Planned, Site, Tell, Told
from console.doctor.examine import examine
from console.doctor.finding import Diagnosis, Repair
from console.engines import Database
from console.errors import ConnectionFailedError, ConsoleError
from console.rights import Rights


def repairs_of(diagnosis: Diagnosis, rights: Rights) -> list[Repair]:
    """Those that run by themselves and that the connection may, the gravest finding's first."""
    found = [finding.repair for finding in diagnosis.findings if finding.repair is not None]
    return [repair for repair in found if repair.unattended and repair.rights <= rights]


@dataclass(frozen=True)
class Tried:
    """What came of one repair."""

    lines: tuple[str, ...]
    failed: bool = False


def tried(repair: Repair, database: Database) -> Tried:
    """Run it; one that cannot be done ends none of the others. Raises ConnectionFailedError."""
    try:
        return Tried(tuple(repair.run(database)))
    except ConnectionFailedError:
        raise
    except ConsoleError as error:
        why = " ".join(part for part in (error.what, error.why, error.next_step) if part)
        return Tried((f"not done: {repair.summary}: {why}",), failed=True)


def planned(site: Site) -> Planned:
    """What the doctor would mend of a queue now. Changes nothing; waits."""
    (diagnosis,) = _examined(site)
    repairs = repairs_of(diagnosis, site.rights)
    lines = [f"doctor {site.queue.label}: {diagnosis.verdict}"]
    lines += [f"  {one.code.severity.word}: {one.summary}" for one in diagnosis.findings]
    lines += [f"  not looked at: {why}" for why in diagnosis.unseen]
    lines += [f"  {line}" for repair in repairs for line in repair.plan(site.database)]
    if not repairs:
        lines.append("  nothing here can be mended without judgement")

    def do(control: Control, tell: Tell) -> Ended:
        return _mended(site, repairs, control, tell)

    subject = Subject.of(site.database, site.queue, "doctor --fix")
    return Planned(
        subject,
        site.queue,
        tuple(lines),
        by_name=True,
        do=do,
        needed=bool(repairs),
        count=len(repairs),
    )


def _mended(site: Site, repairs: Sequence[Repair], control: Control, tell: Tell) -> Ended:
    """Each proven again first; one that runs is not cut off."""
    lines: list[str] = []
    outcome = Outcome.DONE
    for done, repair in enumerate(repairs):
        control.wait(0.0)
        if control.stopped:
            lines.append(f"{len(repairs) - done} repairs were not begun")
            outcome = Outcome.STOPPED
            break
        tell(Told(done, len(repairs), repair.summary))
        one = tried(repair, site.database)
        lines += one.lines
        outcome = Outcome.FAILED if one.failed else outcome
    (after,) = _examined(site)
    return Ended(outcome, (*lines, f"{site.queue.label}: {after.verdict}"))


def _examined(site: Site) -> list[Diagnosis]:
    return examine(site.database, [site.queue], thresholds_of=site.thresholds_of, masks=site.masks)
