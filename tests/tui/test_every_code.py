"""Every code of the doctor is shown wherever findings are shown."""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from console.cli.commands import doctor as command_line
from console.doctor.checks import CODES
from console.doctor.finding import Code, Diagnosis, Finding
from console.doctor.report import markdown
from console.features.history.recording import findings as recorded
from console.features.metrics.exporter import ConnectionState, families
from console.monitor.limits import DEFAULTS, Limits, Severity, judge
from console.monitor.owners import SHOWN, Holder
from console.monitor.sample import QueueSample
from console.monitor.sampler import Reading
from console.monitor.snapshot import QueueSnapshot, snapshot
from console.tui.findings import queue_findings
from console.tui.store import Store, Traits
from tests.tui.feeds import PAUSE
from tests.tui.feeds import queue as figures_of
from tests.tui.test_findings import diagnosis as diagnosed
from tests.unit.test_snapshot import NOTHING, queue

NOW = datetime(2026, 3, 29, 2, 0, tzinfo=UTC)
CONNECTION = "prod"
QUEUE = queue("status")
SUMMARY = "something of 4711 messages"
FIGURES: QueueSnapshot = replace(
    snapshot(
        QueueSample(
            QUEUE, replace(NOTHING, ready=1, claimed=1, errors=50, done=1, scheduled=0, stuck=0)
        ),
        CONNECTION,
    ),
    holders=None,
    decisions=(PAUSE,),
)
"""Figures of a queue that may have any of the findings."""
THRESHOLDS: Mapping[Severity, Any] = {
    Severity.CRITICAL: DEFAULTS.with_limits(errors=Limits(1, 10)),
    Severity.WARNING: DEFAULTS.with_limits(errors=Limits(1)),
    Severity.NOTE: DEFAULTS,
}


EVIDENCE = ("steps: rows 12,345  since ?  stops no", "who: none")


def diagnosis(code: Code) -> Diagnosis:
    """A finding with that code; one about a figure is about the errors."""
    figure = {"figure": "errors"} if code.name in {"limit_reached", "limit_critical"} else {}
    evidence = {**figure, "steps": [{"rows": 12345, "since": None, "stops": False}], "who": []}
    return Diagnosis(QUEUE, (Finding(code, SUMMARY, evidence),), figures=FIGURES)


def on_the_command_line(of: Diagnosis) -> bool:
    call: Any = SimpleNamespace(zone=None)
    (finding,) = of.findings
    text = "\n".join(command_line._lines(call, [of]))
    wanted = (SUMMARY, f"[{finding.code.name}]", finding.judgement_text, *EVIDENCE)
    return all(words in text for words in wanted) and "None" not in text


def on_the_screen(of: Diagnosis) -> bool:
    (finding,) = of.findings
    thresholds = THRESHOLDS[finding.code.severity]
    store = Store({CONNECTION: 1.0}, 0.0, {CONNECTION: Traits(thresholds=lambda _: thresholds)})
    store.add_reading(CONNECTION, Reading(CONNECTION, (FIGURES,)), 0.0)
    store.add_diagnoses(CONNECTION, [of], 0.0, NOW, next_seconds=30.0)
    (view,) = store.queues(1.0)
    shown = [one for one in view.findings if one.finding and one.finding.code is finding.code]
    listed = {one.key for one in store.findings(1.0)}
    severe = finding.code.severity > Severity.NOTE
    return len(shown) == 1 and bool(shown[0].text) and (shown[0].key in listed) == severe


def in_the_report(of: Diagnosis) -> bool:
    text = markdown(of, of.figures, [], None)
    return SUMMARY in text and f"`{of.findings[0].code.name}`" in text and "judgement" in text


def in_the_metrics(of: Diagnosis) -> bool:
    state = ConnectionState(Reading(CONNECTION, (FIGURES,)), 1.0, (of,), 1.0)
    found = [
        sample.labels
        for family in families([state])
        for sample in family.samples
        if family.name == "dbq_queue_findings_by_code"
    ]
    code = of.findings[0].code
    return [(one["code"], one["severity"]) for one in found] == [(code.name, code.severity.word)]


def in_the_recording(of: Diagnosis) -> bool:
    (row,) = recorded([of], NOW)
    code = of.findings[0].code
    return (row["code"], row["severity"], row["verdict"]) == (
        *(code.name, code.severity.word),
        of.verdict,
    )


OUTPUTS: Mapping[str, Callable[[Diagnosis], bool]] = {
    "command line": on_the_command_line,
    "screen": on_the_screen,
    "report": in_the_report,
    "metrics": in_the_metrics,
    "recorder": in_the_recording,
}


def test_every_code_is_shown_everywhere() -> None:
    table = {
        code.name: [output for output, shows in OUTPUTS.items() if shows(diagnosis(code))]
        for code in CODES
    }
    lines = [
        f"{name:24}" + "".join(f"{'yes' if output in shown_in else 'NO':14}" for output in OUTPUTS)
        for name, shown_in in table.items()
    ]
    print(f"{'':24}" + "".join(f"{output:14}" for output in OUTPUTS), *lines, sep="\n")
    assert all(shown_in == list(OUTPUTS) for shown_in in table.values())
    # The code alone says what to do; findings say more where they can.
    words = [diagnosis(code).findings[0].judgement_text for code in CODES]
    assert all(re.fullmatch("needs your judgement: .{11,}", one, re.DOTALL) for one in words)


def test_the_all_clear_line_says_when_the_doctor_works_or_could_not_examine() -> None:
    store = Store({CONNECTION: 1.0}, 0.0)
    store.add_reading(CONNECTION, Reading(CONNECTION, (replace(FIGURES, errors=0),)), 0.0)
    why = "consumption not known: two samples tell"
    store.add_diagnoses(CONNECTION, [Diagnosis(QUEUE, (), (why,))], 0.0, NOW, next_seconds=30.0)
    assert why in store.all_clear(1.0).text
    assert not store.all_clear(1.0).clear
    store.mark_examining(CONNECTION)
    assert store.all_clear(1.0).text == "the doctor is at work ..."
    assert store.queues(1.0)[0].examining
    store.add_diagnoses(CONNECTION, [Diagnosis(QUEUE, ())], 2.0, NOW, next_seconds=30.0)
    assert store.all_clear(3.0).clear
    assert not store.queues(3.0)[0].examining


def test_old_figures_of_a_finding_carry_their_age() -> None:
    store = Store({CONNECTION: 1.0}, 0.0)
    store.add_reading(CONNECTION, Reading(CONNECTION, (replace(FIGURES, errors=0),)), 0.0)
    (code,) = (one for one in CODES if one.name == "poison")
    store.add_diagnoses(CONNECTION, [diagnosis(code)], 0.0, NOW, next_seconds=30.0)
    words = [[one.text for one in store.queues(at)[0].findings] for at in (1.0, 29.0)]
    assert words == [[SUMMARY], [f"{SUMMARY} (29 s ago)"]]
    # Findings from figures are current.
    errors = Store({CONNECTION: 1.0}, 0.0)
    errors.add_reading(CONNECTION, Reading(CONNECTION, (FIGURES,)), 0.0)
    (limit,) = (one for one in CODES if one.name == "limit_reached")
    errors.add_diagnoses(CONNECTION, [diagnosis(limit)], 0.0, NOW, next_seconds=30.0)
    assert [one.text for one in errors.queues(29.0)[0].findings] == ["50 in error (limit 10)"]


BY_NAME = {code.name: code for code in CODES}
OF_SESSIONS = {"rows_held": int, "prepared_forgotten": str}
OF_LIMITS = {Severity.WARNING: "limit_reached", Severity.CRITICAL: "limit_critical"}
OF_CLAIMS = {name for name in BY_NAME if name.startswith("claims_")}

pids = st.integers(1, 4_194_304)
gids = st.text(min_size=1) | pids.map(str) | pids.map("pid={} start=x".format)


@st.composite
def states(draw: st.DrawFn) -> tuple[QueueSnapshot, Diagnosis]:
    """Figures of a queue, and a diagnosis that agrees with them."""
    sessions = draw(st.lists(pids | gids, unique=True, max_size=SHOWN + 2))
    holders = tuple(Holder(one, "u", None, None, 1.0, None, 1.0) for one in sessions)
    knows = draw(st.booleans())
    named = draw(st.lists(st.sampled_from(sorted(BY_NAME.keys() - OF_LIMITS.values()))))
    claimed = draw(st.integers(1, 9) | st.none()) if OF_CLAIMS & {*named} else 0
    stopped = "consumer_stopped" in named
    sampled = replace(
        figures_of("q", "claim", claimed=claimed, errors=draw(st.integers(0, 12))),
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
        for one in judge(sampled, DEFAULTS)
    ]
    return sampled, diagnosed("q", *draw(st.permutations(findings)))


@given(states())
def test_every_finding_is_shown(state: tuple[QueueSnapshot, Diagnosis]) -> None:
    sampled, result = state
    views = queue_findings(sampled.key, sampled, judge(sampled, DEFAULTS), result)
    shown = Counter(view.finding.code.name for view in views if view.finding is not None)
    assert shown == Counter(finding.code.name for finding in result.findings)
    assert len({view.key for view in views}) == len(views)
