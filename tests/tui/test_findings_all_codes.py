"""What the doctor says of a state the screens say too: every code, in any company."""

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from console.doctor.families import CODES
from console.doctor.finding import Diagnosis, Finding
from console.monitor.limits import DEFAULTS, Severity, judge
from console.monitor.owners import SHOWN, Holder
from console.monitor.snapshot import QueueSnapshot
from console.tui.findings import of_queue
from tests.tui.feeds import PAUSE, queue
from tests.tui.test_findings import diagnosis

BY_NAME = {code.name: code for code in CODES}
OF_SESSIONS = {"rows_held": int, "prepared_forgotten": str}
OF_LIMITS = {Severity.WARNING: "limit_reached", Severity.CRITICAL: "limit_critical"}
OF_CLAIMS = {name for name in BY_NAME if name.startswith("claims_")}

pids = st.integers(1, 4_194_304)
gids = st.text(min_size=1) | pids.map(str) | pids.map("pid={} start=x".format)


@st.composite
def states(draw: st.DrawFn) -> tuple[QueueSnapshot, Diagnosis]:
    """Figures of a queue, and what the doctor says where he saw the same."""
    sessions = draw(st.lists(pids | gids, unique=True, max_size=SHOWN + 2))
    holders = tuple(Holder(one, "u", None, None, 1.0, None, 1.0) for one in sessions)
    knows = draw(st.booleans())
    named = draw(st.lists(st.sampled_from(sorted(BY_NAME.keys() - OF_LIMITS.values()))))
    claimed = draw(st.integers(1, 9) | st.none()) if OF_CLAIMS & {*named} else 0
    stopped = "consumer_stopped" in named
    seen = replace(
        queue("q", "claim", claimed=claimed, errors=draw(st.integers(0, 12))),
        ready=10**7 if stopped else draw(st.sampled_from([0, 10**7])),
        pop_per_second=draw(st.sampled_from([0.0, None])) if stopped else 4.0,
        holders=len(holders) if knows else None,
        held_by=holders[:SHOWN] if knows else (),
        decisions=(PAUSE,),
    )
    findings = [
        Finding(BY_NAME[name], name, {"session": one})
        for name, of in OF_SESSIONS.items()
        for one in sessions
        if isinstance(one, of)
    ]
    findings += [Finding(BY_NAME[name], name) for name in named if name not in OF_SESSIONS]
    findings += [
        Finding(BY_NAME[OF_LIMITS[one.level]], one.reason, one.as_json())
        for one in judge(seen, DEFAULTS)
    ]
    return seen, diagnosis("q", *draw(st.permutations(findings)))


@given(states())
def test_every_finding_is_shown(state: tuple[QueueSnapshot, Diagnosis]) -> None:
    seen, said = state
    views = of_queue(seen.key, seen, judge(seen, DEFAULTS), said)
    shown = Counter(view.finding.code.name for view in views if view.finding is not None)
    assert shown == Counter(finding.code.name for finding in said.findings)
    assert len({view.key for view in views}) == len(views)
