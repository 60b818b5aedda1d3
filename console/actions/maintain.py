"""Maintain a queue: each step of the plan on its own, so that it can be stopped between two."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING

from console import sql
from console.actions import maintenance
from console.actions.maintenance import MaintainStep, Maintenance, Measures, measure, size_text
from console.catalog import Queue, audit
from console.catalog.audit import Ledger, Outcome
from console.engines import Database, Timeouts, no_timeout
from console.errors import ConsoleError
from console.formats import numbered
from console.plan import Control, OnProgress, Plan, Progress, Result, queue_plan

if TYPE_CHECKING:
    from sqlalchemy import Connection

_HOURS_SECONDS = 6 * 3600.0
"""A statement time-out that no step reaches, and that every driver accepts."""


def plan(database: Database, queue: Queue) -> Plan:
    """What is worth its work, by new measures."""
    found = maintenance.find(database, queue)
    return queue_plan(
        database,
        queue,
        "maintain",
        found.lines(),
        partial(maintain, database, found),
        needed=found.needed,
        count=len(found.steps),
        sql="\n\n".join(step.sql for step in found.steps),
        data=found.as_json(),
    )


def maintain(
    database: Database,
    wanted: Maintenance,
    control: Control | None = None,
    on_progress: OnProgress = lambda _: None,
) -> Result:
    """Run the steps, each on its own; a failed step does not end the others."""
    if not wanted.steps:
        return _result(wanted, [], wanted.measures, None, Outcome.DONE)
    queue, control = wanted.queue, control or Control()
    doing = f"maintain the queue {queue.name!r}"
    database.require_own_session(doing)
    detail = ", ".join(step.name for step in wanted.steps)
    subject = audit.Subject.of(database, queue, "maintain", detail)
    subject = replace(subject, planned=len(wanted.steps))
    with database.transaction(doing) as connection:
        record = audit.ActionRecord.begin(connection, subject)
    problems: list[str] = []
    """Of the steps so far; empty: it succeeded."""
    outcome, problem = Outcome.FAILED, "interrupted"
    try:
        for step in wanted.steps:
            control.wait(0)
            if control.stopped:
                break
            problems.append(_do(database, doing, step))
            on_progress(Progress(len(problems), len(wanted.steps), step.name))
        problem = _problem(wanted, problems)
        outcome = Outcome.FAILED if problem else Outcome.DONE
        if len(problems) < len(wanted.steps):
            outcome = Outcome.STOPPED
    finally:
        ledger = _ledger(problems)
        with suppress(ConsoleError), database.transaction(doing) as connection:
            record.batch(connection, ledger)
            record.end(connection, outcome, "; ".join(text for text in (detail, problem) if text))
        record.log_locally(outcome, ledger, problem)
    return _result(wanted, problems, measure(database, queue), record.action_id, outcome)


def _problem(wanted: Maintenance, problems: Sequence[str]) -> str:
    failed = zip(wanted.steps, problems, strict=False)
    return "; ".join(f"{step.name}: {why}" for step, why in failed if why)


def _result(
    wanted: Maintenance,
    problems: Sequence[str],
    after: Measures,
    action_id: int | None,
    outcome: Outcome,
) -> Result:
    """`problems`: of each step that was begun."""
    queue, before = wanted.queue, wanted.measures
    begun = list(zip(wanted.steps, problems, strict=False))
    lines = [f"maintain {queue.label}: {outcome.value}"]
    lines += [f"  {step.name}: {f'failed: {why}' if why else 'done'}" for step, why in begun]
    left = len(wanted.steps) - len(begun)
    lines += [f"  {numbered(left, 'step')} not started"] if left else []
    sizes = f"{size_text(before.pages)} before, {size_text(after.pages)} now"
    dead = f"dead rows: ≈{before.dead_rows:,} before, ≈{after.dead_rows:,} now"
    return Result(
        outcome,
        (*lines, f"  {sizes}; {dead}"),
        action_id=action_id,
        done=problems.count(""),
        problem=_problem(wanted, problems),
        data={
            "queue": queue.name,
            "schema": queue.schema,
            "action_id": action_id,
            "outcome": outcome.value,
            "steps": [step.as_json() | {"problem": why} for step, why in begun],
            "pages_before": before.pages,
            "pages_after": after.pages,
            "tables": [asdict(table) for table in after.tables],
            "indexes": [asdict(index) for index in after.indexes],
        },
    )


def _ledger(problems: Sequence[str]) -> Ledger:
    """Steps, not messages."""
    done = problems.count("")
    failed = {"steps that failed": len(problems) - done} if done < len(problems) else {}
    return Ledger(selected=len(problems), out=done, into=done, failed=failed)


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
