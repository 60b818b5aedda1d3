"""Pause a queue: its pops return no row, as when it is empty, until it is resumed.

The functions that callers use are replaced by others of the same signature; the originals are kept
in `dbq.pause`. So a queue that is not paused pays nothing for it.

A library's queue is paused by the library's own rule, where it has one: `dbq.pause` then keeps by
whom and why, and no functions.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

from console import sql
from console.actions.rows import run_others_code
from console.actions.short_locks import retry_while_busy
from console.catalog import Queue, audit, decisions, lookups
from console.catalog.audit import ImbalanceError
from console.engines import Database, product_of
from console.errors import RefusedError, UsageError

if TYPE_CHECKING:
    from sqlalchemy import Connection


@dataclass(frozen=True)
class InstalledRoutine:
    """One function (procedure) as the server has it; `body`: None where it is hidden."""

    name: str
    id: str
    signature: str
    settings: str
    body: str | None


@dataclass(frozen=True)
class _Code:
    name: str
    id: str
    definition: str
    exchanged: bool


@dataclass(frozen=True)
class _Kept:
    """A function that was replaced: what is restored, and what an upgrade compares."""

    name: str
    id: str
    definition: str
    signature: str
    settings: str
    body: str
    push: bool
    intact: bool = True
    """Whether it is still what was there: whoever writes `dbq.pause` need not own the function."""


def installed_code(
    connection: Connection, queue: Queue, names: Sequence[str]
) -> Sequence[InstalledRoutine]:
    """The routines of these names; of a paused queue those that resume will restore."""
    routines = _on_server(connection, queue, names)
    kept = _kept(connection, queue)
    if not kept:
        return routines
    replaced = _replaced(connection, queue, kept)
    back = {(one.name, one.signature): one for one in kept if one.name not in replaced}
    return [
        replace(row, body=one.body)
        if (one := back.get((row.name, row.signature))) is not None
        else row
        for row in routines
    ]


def _on_server(
    connection: Connection, queue: Queue, names: Sequence[str]
) -> Sequence[InstalledRoutine]:
    def read(on: Connection, names: Sequence[str]) -> list[InstalledRoutine]:
        array = product_of(on).array(names)
        where = {"schema": queue.schema, "names": array}
        return sql.rows(on, InstalledRoutine, "upgrade.installed_code", **where)

    return lookups.by_name(
        connection, "code", queue.schema, names, read, lambda routine: routine.name
    )


def _names(queue: Queue, *, push: bool) -> list[str]:
    of = ("pop", "pop_many", *(("push", "push_many") if push else ()))
    return [f"{queue.name}_{one}" for one in of]


def callers(database: Database, queue: Queue) -> int | None:
    """The number of sessions with an open transaction on it, which keep what they have popped;
    None: this login may not see it."""
    with database.transaction(f"count the callers of {queue.name!r}", read_only=True) as connection:
        return sql.value(connection, int | None, "pause.calling", queue.scope(connection))


def pause(
    database: Database, queue: Queue, *, reason: str, seconds: float | None, push: bool
) -> datetime:
    """The time of the pause. UsageError where it is already paused."""
    return retry_while_busy(lambda: _pause_once(database, queue, reason, seconds, push=push))


def _pause_once(
    database: Database, queue: Queue, reason: str, seconds: float | None, *, push: bool
) -> datetime:
    subject = audit.Subject.of(database, queue, "pause", reason)
    with audit.recorded(database, f"pause {queue.name!r}", subject) as act:
        connection = act.connection
        audit.prepare_decisions(connection)
        sql.run(connection, "catalog.lock")
        if _is_kept(connection, queue):
            raise UsageError(f"The queue {queue.name!r} is already paused.")
        return sql.value(
            connection,
            datetime,
            "pause.store_definitions",
            schema=queue.schema,
            queue=queue.name,
            operator=audit.operator(),
            reason=reason,
            seconds=seconds,
            push=push,
            functions=(
                _by_library(connection, queue, "pause")
                if queue.design.library
                else _exchange(connection, queue, push=push)
            ),
        )


def resume(database: Database, queue: Queue) -> datetime:
    """The time of the pause. UsageError where it was not paused; RefusedError where its functions,
    or what is recorded of them, have been replaced meanwhile."""
    return retry_while_busy(lambda: _resume_once(database, queue))


def _resume_once(database: Database, queue: Queue) -> datetime:
    subject = audit.Subject.of(database, queue, "resume")
    with audit.recorded(database, f"resume {queue.name!r}", subject) as act:
        connection = act.connection
        audit.prepare_decisions(connection)
        sql.run(connection, "catalog.lock")
        if not _is_kept(connection, queue):
            raise UsageError(f"The queue {queue.name!r} is not paused.")
        if queue.design.library:
            _by_library(connection, queue, "resume")
        kept = _kept(connection, queue)
        problem = [f"{n} was replaced after the pause." for n in _replaced(connection, queue, kept)]
        problem += [
            f"What dbq.pause has of {one.name} is not what was there before the pause."
            for one in kept
            if not one.intact
        ]
        if problem:
            raise RefusedError(
                f"The queue {queue.name!r} cannot be resumed as it stands.",
                why=problem[0],
                next_step=f"Install this console's version: dbq-console upgrade {queue.name}",
            )
        _put_back(connection, queue, kept)
        return sql.value(connection, datetime, "pause.end", schema=queue.schema, queue=queue.name)


def _by_library(connection: Connection, queue: Queue, verb: str) -> str:
    """By the rule of its library; returns no functions to keep. RefusedError where it cannot."""
    if why := impossible(connection, queue):
        raise RefusedError(f"Nothing was changed: no {verb} of {queue.name!r}.", why=f"{why}.")
    with run_others_code(connection, queue):
        sql.value(connection, int, f"{queue.design.name}.{verb}", queue.scope(connection))
    return "[]"


def impossible(connection: Connection, queue: Queue) -> str:
    """Why the library's rule does not apply to this queue; empty: it does."""
    scope = queue.scope(connection)
    return sql.value(connection, str | None, f"{queue.design.name}.may_pause", scope) or ""


def paused_by_library(connection: Connection, queue: Queue) -> list[datetime]:
    """The pause times of its paused queues, whoever paused them."""
    name = f"{queue.design.name}.paused"
    return sql.values(connection, datetime, name, queue.scope(connection))


def suspend(connection: Connection, queue: Queue) -> bool | None:
    """For an upgrade, in its transaction: restore the functions, except those replaced since, or
    whose record was. Returns whether pushes were paused too; None: the queue is not paused."""
    kept = _kept(connection, queue)
    if not kept:
        return None
    replaced = _replaced(connection, queue, kept)
    _put_back(connection, queue, [k for k in kept if k.intact and k.name not in replaced])
    return kept[0].push


def reapply(connection: Connection, queue: Queue, *, push: bool) -> None:
    """After `suspend`: the pause goes on; resume will restore what the upgrade has installed."""
    functions = _exchange(connection, queue, push=push)
    where = {"schema": queue.schema, "queue": queue.name}
    sql.value(connection, datetime, "pause.renew", functions=functions, **where)


def replaced_functions(connection: Connection, queue: Queue) -> list[str]:
    """Functions of a paused queue that were replaced since: they pop, or push, again."""
    kept = _kept(connection, queue)
    return _replaced(connection, queue, kept) if kept else []


def _replaced(connection: Connection, queue: Queue, kept: Sequence[_Kept]) -> list[str]:
    there = {code.name: code for code in _code(connection, queue, [one.name for one in kept])}
    return [one.name for one in kept if one.name not in there or not there[one.name].exchanged]


def _exchange(connection: Connection, queue: Queue, *, push: bool) -> str:
    """Replace the functions; the originals, as JSON."""
    names = _names(queue, push=push)
    compared = {routine.name: routine for routine in _on_server(connection, queue, names)}
    codes = _code(connection, queue, names)
    if missing := set(names) - {code.name for code in codes}:
        raise RefusedError(
            f"The queue {queue.name!r} cannot be paused.",
            why=f"It lacks the function {min(missing)}.",
            next_step=f"See what differs: dbq-console upgrade {queue.name} --dry-run",
        )
    kept = []
    for one in codes:
        of = compared[one.name]
        if of.body is None:
            raise RefusedError(
                f"The queue {queue.name!r} cannot be paused.",
                why=f"This login may not see the text of {one.name}, which resume restores.",
                next_step="Use a login that may (dbq_admin).",
            )
        kept.append(
            _Kept(one.name, one.id, one.definition, of.signature, of.settings, of.body, push)
        )
        pushes = "yes" if one.name.startswith(f"{queue.name}_push") else "no"
        scope = queue.scope(connection, function=one.id or one.name, pushes=pushes)
        sql.run(connection, "pause.exchange", scope)
    return json.dumps([asdict(one) for one in kept], ensure_ascii=False)


def _put_back(connection: Connection, queue: Queue, kept: list[_Kept]) -> None:
    for one in kept:
        where = {"schema": queue.schema, "queue": queue.name, "function": one.id or one.name}
        sql.run(connection, "pause.restore_code", sql.Scope(where))
    names = [one.name for one in kept]
    back = {routine.name: routine.body for routine in _on_server(connection, queue, names)}
    if changed := [one.name for one in kept if back.get(one.name) != one.body]:
        raise ImbalanceError(
            f"The queue {queue.name!r} was not resumed: all of it was undone.",
            why=f"{changed[0]} is not what it was before the pause.",
            next_step="Check whether a trigger in this database changes what is created.",
        )


def _code(connection: Connection, queue: Queue, names: Sequence[str]) -> list[_Code]:
    array = product_of(connection).array(names)
    return sql.rows(connection, _Code, "pause.code", schema=queue.schema, names=array)


def _is_kept(connection: Connection, queue: Queue) -> bool:
    return decisions.find(connection, "pause", queue.schema, queue.name) is not None


def _kept(connection: Connection, queue: Queue) -> list[_Kept]:
    paused: set[tuple[str, str]] | None = lookups.known("pauses")
    if paused is not None and (queue.schema, queue.name) not in paused:
        return []
    if not decisions.has_decisions(connection):
        return []
    return sql.rows(
        connection, _Kept, "pause.stored_definitions", schema=queue.schema, queue=queue.name
    )
