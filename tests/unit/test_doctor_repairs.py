"""Repairs that are verbs: each is a verb with arguments, and runs as the verb does."""

import shlex
from collections import Counter
from dataclasses import replace
from typing import ClassVar

import pytest

from console.catalog import Queue, installed_queue
from console.catalog.audit import Outcome, Subject
from console.designs import DESIGNS
from console.doctor import repairs
from console.doctor.checks import CODES
from console.doctor.finding import Diagnosis, Finding
from console.doctor.repairs import VerbRepair
from console.doctor.verbs import plan_repairs
from console.engines import open_database
from console.errors import UsageError
from console.monitor.limits import DEFAULTS
from console.plan import Control, OnProgress, Plan, Result, single_step
from console.rights import Rights
from console.verbs import get_verb
from console.verbs import verb as verb_module
from console.verbs.command import Params
from console.verbs.index import VERBS
from console.verbs.verb import Target

SECONDS = 120.0


def queue_of(design: str, name: str = "mail") -> Queue:
    found = DESIGNS[design]
    return installed_queue("public", name, found, found.complete_options({}))


CLAIM, RING = queue_of("claim"), queue_of("ring", "--size")
REPAIRS: list[tuple[VerbRepair, str, dict[str, object]]] = [
    (repairs.release_claims(CLAIM, SECONDS), "release", {}),
    (repairs.release_claims(CLAIM, SECONDS, "unknown"), "release", {"unknown": True}),
    (
        repairs.release_claims(CLAIM, SECONDS, "alive"),
        "release",
        {"filter": ("older=120s",), "force": True},
    ),
    (repairs.archive_done(CLAIM), "archive", {"filter": ("older=86400s",)}),
    (repairs.upgrade(CLAIM, by_hand=False), "upgrade", {}),
    (repairs.maintain_queue(CLAIM, "vacuum"), "maintain", {}),
    (repairs.relay(RING), "relay", {}),
    (
        repairs.terminate_session(CLAIM, 4711, SECONDS),
        "end-session",
        {"session": "4711", "older": 120.0},
    ),
    (
        repairs.terminate_session(CLAIM, "--x=1", SECONDS),
        "end-session",
        {"session": "--x=1", "older": 120.0},
    ),
    (repairs.enable_queue(CLAIM), "requeue", {}),
    (repairs.end_conversations(CLAIM), "release", {}),
]


@pytest.mark.parametrize(
    ("repair", "verb", "arguments"), REPAIRS, ids=lambda one: getattr(one, "verb", "")
)
def test_a_repair_is_the_verb_that_its_command_line_names(
    repair: VerbRepair, verb: str, arguments: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[Target, Params]] = []

    def plan(target: Target, values: Params) -> Plan:
        calls.append((target, values))
        subject = Subject.of(target.database, target.queue, verb)
        lines = ("planned",)
        return Plan(subject, target.queue, lines, requires_name=False, run=run)

    def run(control: Control, on_progress: OnProgress) -> Result:
        del control, on_progress
        return Result(Outcome.DONE, ("done",))

    found_verb = get_verb(verb)
    constant = verb.replace("-", "_").upper()
    module = f"console.{VERBS[verb][0]}"
    monkeypatch.setattr(f"{module}.{constant}", replace(found_verb, make_plan=plan))
    monkeypatch.setattr(Target, "protection", None)
    database = open_database("postgresql://nobody@127.0.0.1:1/nothing")
    limits = replace(DEFAULTS, stuck_after_seconds=SECONDS)
    planned = repair.plan(Target(database, CLAIM, Rights.ADMIN, lambda _: limits))
    assert (planned.lines, planned.run_to_end().lines) == (("planned",), ("done",))
    ((target, values),) = calls
    default = verb_module.values_from_texts(
        found_verb,
        {parameter.name: "x" for parameter in found_verb.parameters if parameter.required},
    )
    assert values == {**default, **arguments}
    assert target.queue == repair.queue
    assert target.thresholds_of("mail") == limits
    command_words = shlex.split(repair.command)
    assert command_words[:3] == ["dbq-console", verb, repair.queue.name]
    assert verb_module.values_from_texts(found_verb, repair.texts) == values
    assert repair.rights == found_verb.right(values) > Rights.READ_ONLY
    assert repair.summary
    database.close()


class Refused(VerbRepair):
    """Its plan has an obstacle, as one of a protected queue."""

    def plan(self, target: Target) -> Plan:
        def run(control: Control, on_progress: OnProgress) -> Result:
            raise AssertionError(control, on_progress)

        subject = Subject.of(target.database, self.queue, self.verb)
        obstacles = ("It is protected by ann.",)
        return Plan(subject, self.queue, (), requires_name=False, run=run, obstacles=obstacles)


class Failing(VerbRepair):
    def plan(self, target: Target) -> Plan:
        subject = Subject.of(target.database, self.queue, self.verb)
        run = single_step(lambda: Result(Outcome.FAILED, ("a lock",)))
        return Plan(subject, self.queue, (), requires_name=False, run=run)


def test_a_repair_with_an_obstacle_is_not_run_and_one_that_fails_counts_as_failed() -> None:
    database = open_database("postgresql://nobody@127.0.0.1:1/nothing")
    target = Target(database, CLAIM, Rights.ADMIN)
    refused = repairs.try_repair(Refused(CLAIM, "archive", summary="archive"), target)
    assert (refused.outcome, "protected by ann" in refused.problem) == (Outcome.FAILED, True)
    failed = repairs.try_repair(Failing(CLAIM, "maintain", summary="vacuum"), target)
    assert (failed.outcome, failed.lines) == (Outcome.FAILED, ("a lock",))
    database.close()


class Counting(VerbRepair):
    """Counts its plans, the first of which fails if it has no parameters."""

    planned: ClassVar[Counter[str]] = Counter()

    def plan(self, target: Target) -> Plan:
        self.planned[self.verb] += 1
        if not self.texts and self.planned[self.verb] == 1:
            raise UsageError("Not as things stand.")
        subject = Subject.of(target.database, self.queue, self.verb)
        run = single_step(lambda: Result(Outcome.DONE, (self.verb,)))
        return Plan(subject, self.queue, (f"plan of {self.verb}",), requires_name=False, run=run)


def test_each_repair_is_planned_once_and_again_only_where_it_could_not_be() -> None:
    database = open_database("postgresql://nobody@127.0.0.1:1/nothing")
    target = Target(database, CLAIM, Rights.ADMIN)
    both = (
        Counting(CLAIM, "release", {"force": "yes"}, "release", unattended=True),
        Counting(CLAIM, "maintain", summary="vacuum", unattended=True),
    )
    code = CODES[0]
    findings = tuple(Finding(code, "wrong", evidence={}, repair=counting) for counting in both)
    plan = plan_repairs(target, Diagnosis(CLAIM, findings), {"code": (), "subscriber": None})
    assert plan.lines == ("plan of release", "not planned: vacuum: Not as things stand.")
    assert plan.run_to_end().lines == ("release", "maintain")
    assert Counting.planned == Counter(release=1, maintain=2)
    database.close()
