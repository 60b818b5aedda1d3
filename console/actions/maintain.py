"""Maintain a queue: each step of the plan on its own, so that it can be stopped between two."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from console import audit, sql
from console.actions.maintain_plan import MaintainPlan, MaintainStep, Measures, measure, size_text
from console.audit import Ledger
from console.engines import Database, Timeouts, no_timeout
from console.errors import ConsoleError
from console.formats import numbered
from console.plan import Control

if TYPE_CHECKING:
    from sqlalchemy import Connection

_HOURS_SECONDS = 6 * 3600.0
"""A statement time-out that no step reaches, and that every driver accepts."""


@dataclass(frozen=True)
class StepResult:
    step: MaintainStep
    problem: str = ""
    """Why it failed; empty: it succeeded."""


@dataclass(frozen=True)
class Maintained:
    plan: MaintainPlan
    done: tuple[StepResult, ...]
    after: Measures
    action_id: int | None
    outcome: audit.Outcome

    def lines(self) -> list[str]:
        lines = [f"maintain {self.plan.queue.label}: {self.outcome.value}"]
        for one in self.done:
            result = f"failed: {one.problem}" if one.problem else "done"
            lines.append(f"  {one.step.what} {one.step.target}: {result}")
        left = len(self.plan.steps) - len(self.done)
        lines += [f"  {numbered(left, 'step')} not started"] if left else []
        sizes = f"{size_text(self.plan.measures.pages)} before, {size_text(self.after.pages)} now"
        before, now = self.plan.measures.dead_rows, self.after.dead_rows
        return [*lines, f"  {sizes}; dead rows: ≈{before:,} before, ≈{now:,} now"]

    def as_json(self) -> dict[str, object]:
        return {
            "queue": self.plan.queue.name,
            "schema": self.plan.queue.schema,
            "action_id": self.action_id,
            "outcome": self.outcome.value,
            "steps": [one.step.as_json() | {"problem": one.problem} for one in self.done],
            "pages_before": self.plan.measures.pages,
            "pages_after": self.after.pages,
            "tables": [asdict(table) for table in self.after.tables],
            "indexes": [asdict(index) for index in self.after.indexes],
        }


def maintain(
    database: Database,
    planned: MaintainPlan,
    *,
    control: Control | None = None,
    progress: Callable[[StepResult], None] = lambda _: None,
) -> Maintained:
    """Run the plan's steps, each on its own; a failed step does not end the others."""
    queue = planned.queue
    if not planned.steps:
        return Maintained(planned, (), planned.measures, None, audit.Outcome.DONE)
    control = control or Control()
    doing = f"maintain the queue {queue.name!r}"
    database.require_own_session(doing)
    detail = ", ".join(f"{step.what} {step.target}" for step in planned.steps)
    subject = audit.Subject.of(database, queue, "maintain", detail)
    subject = replace(subject, planned=len(planned.steps))
    with database.transaction(doing) as connection:
        record = audit.ActionRecord.begin(connection, subject)
    done: list[StepResult] = []
    outcome, problem = audit.Outcome.FAILED, "interrupted"
    try:
        for step in planned.steps:
            control.wait(0)
            if control.stopped:
                break
            done.append(StepResult(step, _do(database, doing, step)))
            progress(done[-1])
        failed = [one for one in done if one.problem]
        problem = "; ".join(f"{one.step.what} {one.step.target}: {one.problem}" for one in failed)
        outcome = audit.Outcome.FAILED if failed else audit.Outcome.DONE
        if len(done) < len(planned.steps):
            outcome = audit.Outcome.STOPPED
    finally:
        ledger = _ledger(done)
        with suppress(ConsoleError), database.transaction(doing) as connection:
            record.batch(connection, ledger)
            record.end(connection, outcome, "; ".join(text for text in (detail, problem) if text))
        record.log_locally(outcome, ledger, problem)
    return Maintained(planned, tuple(done), measure(database, queue), record.action_id, outcome)


def _ledger(done: Sequence[StepResult]) -> Ledger:
    """Steps, not messages."""
    failed = sum(1 for one in done if one.problem)
    well = len(done) - failed
    problems = {"steps that failed": failed} if failed else {}
    return Ledger(selected=len(done), out=well, into=well, failed=problems)


def _do(database: Database, doing: str, step: MaintainStep) -> str:
    """Why it failed; empty: it succeeded."""
    try:
        with (
            database.autocommit(doing) as connection,
            _patience(connection, database),
            database.product.permission_warnings(connection) as refused,
        ):
            try:
                for text in step.statements:
                    _run(connection, text)
            finally:
                if step.always:
                    _run(connection, step.always)
    except ConsoleError as error:
        return " ".join(part for part in (error.what, error.why) if part)
    return "; ".join(refused)


def _run(connection: Connection, text: str) -> None:
    connection.exec_driver_sql(
        f"/* dbq maintenance */ {text}", execution_options={"no_parameters": True}
    )


@contextmanager
def _patience(connection: Connection, database: Database) -> Iterator[None]:
    """No time-out for a running statement; the usual one for a lock."""
    if not sql.has(connection, "maintenance.disable_timeout"):
        usual = database.timeouts
        limits = Timeouts(usual.connect_seconds, _HOURS_SECONDS, usual.lock_seconds)
        connection.execution_options(dbq_timeouts=limits)
        yield
        return
    from sqlalchemy.exc import DBAPIError  # noqa: PLC0415  # a verb imports what it uses

    sql.values(connection, str, "maintenance.disable_timeout")
    try:
        with no_timeout():
            yield
    finally:
        # A lost connection has nothing to reset.
        with suppress(DBAPIError):
            sql.run(connection, "maintenance.restore_timeout")
