"""Findings as verbs: the doctor's repairs, and what operators
know already: silence for a time, ack until it ends or worsens, unsilence."""

import difflib
import shlex
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime
from functools import partial

from console import sql
from console.catalog import Queue, audit
from console.catalog.audit import Outcome, Subject
from console.doctor.checks import CODES
from console.doctor.finding import Code, Diagnosis, Finding, Repair, countdown
from console.doctor.repairs import allowed_repairs, try_repair
from console.doctor.stopped_consumers import STOPPED, ConsumptionHistory
from console.errors import ConnectionFailedError, ConsoleError, UsageError
from console.formats import duration, numbered
from console.monitor.limits import Severity
from console.plan import Control, OnProgress, Plan, Progress, Result, indented, single_step
from console.verbs.command import Params
from console.verbs.parameters import DURATION, SUBSCRIBER, Parameter, Placement
from console.verbs.verb import Target, Verb

_BY_NAME = {code.name: code for code in CODES}
Pair = tuple[str, str]
"""Schema and name of a queue; both empty: every queue."""
_SHOWN = "  it is shown in grey; doctor, check and metrics do not count it"


def _complete(_: object, __: object, incomplete: str) -> list[str]:
    return [name for name in _BY_NAME if name.startswith(incomplete)]


_CODE = Parameter(
    "code",
    "The finding's code, as doctor shows it; for a limit, with its figure: limit_reached:depth.",
    placement=Placement.BEFORE,
    required=True,
    complete=_complete,
)
_REASON = Parameter("reason", "Why, for whoever sees the finding; required for a critical one.")


def _plan_silence(target: Target, values: Params) -> Plan:
    _code(values)
    lines = (f"silence {_subject(target, values)} for {duration(values['for'])}", _SHOWN)
    pairs = [(target.queue.schema, target.queue.name)]
    return _planned(target, "silence", lines, single_step(_begin, target, "silence", values, pairs))


def _plan_ack(target: Target, values: Params) -> Plan:
    code = _code(values)
    target.database.require_primary(f"acknowledge {values['code']}")
    pairs = _having(target, code, values["code"])
    lines = (
        f"acknowledge {_subject(target, values)}",
        f"{_SHOWN} until it ends or worsens",
        *([] if target.queue.name else [f"  {numbered(len(pairs), 'queue')} with it now"]),
    )
    return _planned(target, "ack", lines, single_step(_begin, target, "ack", values, pairs))


def _plan_unsilence(target: Target, values: Params) -> Plan:
    lines = (f"end what silences or acknowledges {_subject(target, values)}",)
    return _planned(target, "unsilence", lines, single_step(_end, target, values))


def _known_code(name: str) -> Code:
    """UsageError."""
    if name in _BY_NAME:
        return _BY_NAME[name]
    near = difflib.get_close_matches(name, _BY_NAME, n=3)
    raise UsageError(
        f"The doctor has no finding {name!r}.",
        next_step=f"Did you mean: {', '.join(near)}?"
        if near
        else "List them with: dbq-console doctor --codes",
    )


def _code(values: Params) -> Code:
    """UsageError for an unknown code, or a critical one without a reason."""
    name = values["code"].partition(":")[0]
    code = _known_code(name)
    if code.severity is Severity.CRITICAL and not values["reason"]:
        raise UsageError(
            f"{name} is critical: it can only be silenced with a reason.", next_step="Add --reason."
        )
    return code


def _examined(
    target: Target, queues: Sequence[Queue] | None = None, *, waits: bool = False
) -> list[Diagnosis]:
    """`waits`: for a second sample, by which consumption is measured, and says so before."""
    from console.doctor.diagnose import diagnose  # noqa: PLC0415  # --help needs none of it

    def on_known(diagnoses: Sequence[Diagnosis], seconds: float) -> None:
        of = ", ".join(diagnosis.queue.label for diagnosis in diagnoses if diagnosis.pending)
        target.on_wait(countdown(seconds, of))

    return diagnose(
        target.database,
        queues,
        thresholds_of=target.thresholds_of,
        masks=target.masks,
        consumption=ConsumptionHistory(waits=waits),
        on_known=on_known,
    )


def _having(target: Target, code: Code, text: str) -> list[Pair]:
    """The queues that have the finding now: only those can be acknowledged. A queue that is named
    may also have it as far as one sample shows. UsageError: there is none."""
    named = [target.queue] if target.queue.name else None
    diagnoses = _examined(target, named, waits=named is None and code is STOPPED)
    which = text.partition(":")[2]
    pairs = [
        (diagnosis.queue.schema, diagnosis.queue.name)
        for diagnosis in diagnoses
        if any(it.code.name == code.name and which in {"", it.subject} for it in diagnosis.findings)
        or (named and code.name in diagnosis.unproven)
    ]
    if not pairs:
        of = shlex.quote(target.queue.name) if named else ""
        there = sorted({_name(it) for diagnosis in diagnoses for it in diagnosis.findings})
        raise UsageError(
            f"{target.queue.label if named else 'No queue'} has {'no' if named else 'the'} finding "
            f"{text} now.",
            why=f"It has: {', '.join(there) or 'none'}." if named else "",
            next_step=f"In advance, for a time: dbq-console silence {text} {of}".rstrip(),
        )
    return pairs


def _name(finding: Finding) -> str:
    """As `silence` and `ack` take it."""
    figure = finding.evidence.get("figure")
    return f"{finding.code.name}:{figure}" if figure else finding.code.name


def _subject(target: Target, values: Params) -> str:
    return f"{values['code']} of {target.queue.label if target.queue.name else 'every queue'}"


def _planned(
    target: Target, verb: str, lines: Sequence[str], run: Callable[[Control, OnProgress], Result]
) -> Plan:
    subject = Subject.of(target.database, target.queue, verb)
    return Plan(subject, target.queue, tuple(lines), requires_name=False, run=run, stoppable=False)


_KINDS = {"silence": "silence", "ack": "acknowledge"}
_DONE = {"silence": "silenced", "ack": "acknowledged", "unsilence": "unsilenced"}


def _begin(target: Target, verb: str, values: Params, pairs: Sequence[Pair]) -> Result:
    """Replaces an earlier silence or acknowledgement of the same finding."""
    code = _code(values)
    operator = audit.operator()
    of = {"kind": _KINDS[verb], "code": values["code"]}
    with _recorded(target, verb, values) as act:
        audit.prepare_decisions(act.connection)
        for schema, queue in pairs:
            where = {**of, "schema": schema, "queue": queue}
            sql.values(act.connection, datetime, "catalog.silence_end", by=operator, **where)
            sql.value(
                act.connection,
                datetime,
                "catalog.silence_begin",
                severity=code.severity.word if verb == "ack" else "",
                operator=operator,
                reason=values["reason"] or "",
                seconds=values.get("for"),
                **where,
            )
    return _done(target, verb, values, len(pairs))


def _end(target: Target, values: Params) -> Result:
    with _recorded(target, "unsilence", values) as act:
        audit.prepare_decisions(act.connection)
        ended = sql.values(
            act.connection,
            datetime,
            "catalog.silence_end",
            kind=None,
            code=values["code"],
            schema=target.queue.schema,
            queue=target.queue.name or None,
            by=audit.operator(),
        )
        if not ended:
            code = values["code"]
            raise UsageError(
                f"Nothing silences {_subject(target, values)}.",
                next_step=f"To end one for every queue: dbq-console unsilence {code}",
            )
    return _done(target, "unsilence", values, len(ended))


def _recorded(
    target: Target, verb: str, values: Params
) -> AbstractContextManager[audit.RecordedAction]:
    detail = " ".join(filter(None, (values["code"], values.get("reason"))))
    subject = Subject.of(target.database, target.queue, verb, detail)
    return audit.recorded(target.database, f"{verb} {values['code']}", subject)


def _done(target: Target, verb: str, values: Params, count: int) -> Result:
    return Result(Outcome.DONE, (f"{_DONE[verb]} {_subject(target, values)}",), done=count)


SILENCE = Verb(
    "silence",
    make_plan=_plan_silence,
    help="""Silence a finding for a time: it is still shown, with who silenced it and why.

    For one queue or, without NAME, for every one. The silence is stored in the database, for every
    console; doctor, check and metrics do not count the finding. A critical one requires a reason.

    \b
    Examples:
      dbq-console silence consumer_stopped orders --for 4h --reason "consumers move"
      dbq-console silence bloat --for 12h
    """,
    parameters=(_CODE, Parameter("for", "How long.", DURATION, default="4h", metavar="T"), _REASON),
    confirmed=False,
    any_design=True,
)

ACK = Verb(
    "ack",
    make_plan=_plan_ack,
    help="""Acknowledge a finding, until it ends or worsens, while you work on it.

    For one queue or, without NAME, for each that has it now. It ends as soon as a
    recorder or an operator's screens notice; unsilence ends it earlier.

    \b
    Examples:
      dbq-console ack claims_alive orders --reason "a long import, until noon"
      dbq-console ack limit_reached:depth orders
    """,
    parameters=(_CODE, _REASON),
    confirmed=False,
    any_design=True,
)

UNSILENCE = Verb(
    "unsilence",
    make_plan=_plan_unsilence,
    help="""End what silences or acknowledges a finding: for one queue, or without NAME for all.

    \b
    Examples:
      dbq-console unsilence consumer_stopped orders
    """,
    parameters=(_CODE,),
    confirmed=False,
    any_design=True,
)


def plan_repairs(target: Target, diagnosis: Diagnosis, values: Params) -> Plan:
    """What `doctor --fix` would do about what was found: each repair's plan, one after another.

    A finding that its repair cannot be planned for says so, and the others follow."""
    if name := values["subscriber"]:
        target.queue.of(name)  # UsageError, which names the subscribers
    for code in values["code"]:
        _known_code(code)
    repairs = allowed_repairs(diagnosis, target.rights, values["code"], name or "")
    plans = [(repair, *_tried(repair, target)) for repair in repairs]
    lines = [line for _, _, of in plans for line in of]
    return Plan(
        Subject.of(target.database, target.queue, "doctor --fix"),
        target.queue,
        tuple(lines or ["Nothing here can be repaired without your judgement."]),
        requires_name=True,
        run=partial(_repair, target, [(repair, plan) for repair, plan, _ in plans]),
        needed=bool(repairs),
        count=len(repairs),
        data={"repairs": [{"summary": one.summary, "lines": list(of)} for one, _, of in plans]},
    )


def _tried(repair: Repair, target: Target) -> tuple[Plan | None, Sequence[str]]:
    """Its plan and its lines. None: it could not be planned; an earlier repair may change that."""
    try:
        plan = repair.plan(target)
    except ConnectionFailedError:
        raise
    except ConsoleError as error:
        return None, [f"not planned: {repair.summary}: {error.what} {error.why}".rstrip()]
    return plan, plan.lines


def _repair(
    target: Target,
    plans: Sequence[tuple[Repair, Plan | None]],
    control: Control,
    on_progress: OnProgress,
) -> Result:
    """Each checks what it changes; a running one is not cut off."""
    lines: list[str] = []
    failed = done = 0
    for repair, plan in plans:
        control.wait(0.0)
        if control.stopped:
            lines.append(f"{numbered(len(plans) - done - failed, 'repair')} not started")
            return Result(Outcome.STOPPED, tuple(lines), done=done)
        on_progress(Progress(done + failed, len(plans), repair.summary))
        result = try_repair(repair, target, plan)
        lines += result.lines
        failed += result.outcome is Outcome.FAILED
        done += result.outcome is not Outcome.FAILED
    return Result(Outcome.FAILED if failed else Outcome.DONE, tuple(lines), done=done)


def _plan_doctor(target: Target, values: Params) -> Plan:
    (diagnosis,) = _examined(target, [target.queue])
    plan = plan_repairs(target, diagnosis, values)
    lines = [f"doctor {target.queue.label}: {diagnosis.verdict}"]
    lines += [f"  {finding.severity_text}: {finding.summary}" for finding in diagnosis.findings]
    lines += [f"  not examined: {why}" for why in diagnosis.unseen]
    lines += map(indented, plan.lines)
    return replace(plan, lines=tuple(lines), run=partial(_repair_and_examine, target, plan))


def _repair_and_examine(
    target: Target, plan: Plan, control: Control, on_progress: OnProgress
) -> Result:
    result = plan.run(control, on_progress)
    (after,) = _examined(target, [target.queue])
    return replace(result, lines=(*result.lines, f"{target.queue.label}: {after.verdict}"))


DOCTOR = Verb(
    "doctor",
    make_plan=_plan_doctor,
    parameters=(
        Parameter(
            "code",
            "With --fix: repair only these findings, even if they need your judgement.",
            multiple=True,
            metavar="CODE",
            complete=_complete,
        ),
        replace(SUBSCRIBER, help="With --fix: only the findings of this subscriber of a ring."),
    ),
    fixed=("--fix",),
)
