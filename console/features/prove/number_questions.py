"""Questions about numbers and what draws them, and about what the server says of procedures and
indexes."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from console import sql
from console.actions.push import push_many
from console.errors import RefusedError
from console.features.prove.lock_questions import BOTH
from console.features.prove.questions import Question
from console.features.prove.server import act_as
from console.features.prove.site import Site
from console.features.prove.trial import DisprovedError, Trial, require


def _next_push(trial: Trial) -> int:
    number = trial.figures().next_push
    require(number is not None, "the ring's next number cannot be read")
    return number or 0


def _next_number(site: Site) -> str:
    trial, database = site.trial("ring"), site.database
    scope = _of_push_sequence(trial)
    first = _next_push(trial)
    with database.transaction("draw a number") as connection:
        drawn = sql.value(connection, int, "prove.draw", scope)
    require(drawn == first, f"{first} was next, and {drawn} was drawn")
    with database.transaction("draw three numbers") as connection:
        drawn = sql.value(connection, int, "prove.draw_range", scope)
    require(drawn == first + 1, f"{first + 1} was next, and the range began with {drawn}")
    after = _next_push(trial)
    require(after == first + 4, f"after a range of 3 from {drawn} {after} is said to be next")
    with database.transaction("restart a sequence") as connection:
        sql.run(connection, "prove.restart_sequence", scope)
        connection.rollback()
    # It may have skipped numbers; but then the figures have to know.
    after = _next_push(trial)
    require(after >= first + 4, f"after a RESTART that was rolled back {after} is said to be next")
    with database.transaction("draw a number") as connection:
        drawn = sql.value(connection, int, "prove.draw", scope)
    require(drawn == after, f"{after} was said to be next, and {drawn} was drawn")
    return (
        f"{first}, a range of 3 from {first + 1}, after a RESTART that was rolled back {drawn}"
        f"{_since(site)}"
    )


def _since(site: Site) -> str:
    if not sql.has(site.database.product, "prove.started"):
        return ""
    with site.database.transaction("read the start time", read_only=True) as connection:
        started = sql.value(connection, datetime, "prove.started")
    return (
        f"; not asked: a restart, a crash, a failover (it has run since {started:%Y-%m-%d %H:%M})"
    )


def _of_push_sequence(trial: Trial) -> sql.Scope:
    product = trial.database.product
    return trial.queue.scope(product, sequence=f"{trial.installed.name}_push_seq")


def _smaller_cache(site: Site) -> str:
    trial = site.trial("ring")
    scope = _of_push_sequence(trial)
    sent = trial.push(3)
    before = _next_push(trial)
    with site.database.transaction("make a cache smaller") as connection:
        sql.run(connection, "prove.shrink_cache", scope)
    after = _next_push(trial)
    require(after == before, f"{before} was next, and with a smaller cache it is {after}")
    sent += trial.push(1)
    drawn = _next_push(trial) - 1
    require(drawn == before, f"{before} was next, and {drawn} was drawn")
    trial.require_drained(sent)
    return f"{before} was next before and after, and was drawn"


_BATCH = 500


def _identity_order(site: Site) -> str:
    for design in ("fifo", "stack"):
        trial = site.trial(design)
        with site.database.transaction("push a batch") as connection:
            ids = push_many(connection, trial.queue, trial.payloads(_BATCH))
        numbers = [int(one) for one in ids if one is not None]
        require(len(numbers) == _BATCH, f"{design}: {len(numbers)} of {_BATCH} were stored")
        require(numbers == sorted(numbers), f"{design}: the ids of a batch do not rise")
        trial.require_drained(list(range(_BATCH)))
    return f"fifo and stack: {_BATCH} of a batch came in its order"


def _execute_alone(site: Site) -> str:
    kinds: Sequence[tuple[str, dict[str, str]]] = (
        ("naive", {}),
        ("ring", {}),
        ("ring", {"subscribers": "a,b"}),
    )
    seen = [_pushed_by_caller(site.trial(design, **options)) for design, options in kinds]
    return f"push_many of 3 by a user with EXECUTE alone: {', '.join(seen)}"


def _pushed_by_caller(trial: Trial) -> str:
    ids: list[str | None] = []
    name, label = trial.installed.name, trial.queue.design.name

    def push(connection: Connection) -> None:
        ids.extend(push_many(connection, trial.queue, trial.payloads(3)))

    scope = trial.installed.scope(trial.database.product, member=f"{name}_caller")
    try:
        with trial.database.session("push with EXECUTE alone") as session:
            act_as(session, scope, "prove.make_caller", push)
    except RefusedError as error:
        why = error.why or error.what
        raise DisprovedError(f"{label}: EXECUTE is not enough for push_many: {why}") from error
    numbers = [int(one) for one in ids if one is not None]
    require(len(numbers) == 3, f"{label}: {len(numbers)} of 3 were stored")
    require(numbers == sorted(numbers), f"{label}: the ids of a batch do not rise: {numbers}")
    return f"{label} {numbers}"


def _describe(site: Site) -> str:
    trial = site.trial("ring", subscribers="a,b")
    scope = trial.installed.scope(site.database.product, function=f"{trial.installed.name}_pop")
    with site.database.transaction("describe a procedure", read_only=True) as connection:
        error = sql.value(connection, int, "prove.described", scope)
    require(error, "the server describes it")
    return f"error {error}"


@dataclass(frozen=True)
class _PhysicalStats:
    of_zero: int
    of_index: int


def _index_zero(site: Site) -> str:
    trial = site.trial("fifo")
    with site.database.transaction("measure a table", read_only=True) as connection:
        seen = sql.row(
            connection, _PhysicalStats, "prove.physical_stats", trial.queue.scope(connection)
        )
    require(seen.of_index and not seen.of_zero, f"{seen.of_zero} rows, {seen.of_index} of index 1")
    return f"0 rows, {seen.of_index} of index 1"


QUESTIONS = {
    question.code: question
    for question in (
        Question(
            "next-number",
            "the next number of a sequence is known before it is drawn, after a range and after a "
            "RESTART that was rolled back",
            "the ring's figures and its empty and full: current_value + 1, or the start value "
            "before the first one",
            "an empty ring draws numbers, a full one is not noticed, its figures are false",
            _next_number,
            BOTH,
        ),
        Question(
            "execute-alone",
            "push_many needs EXECUTE and nothing else, and the ids of its batch rise",
            "naive draws by NEXT VALUE FOR ... OVER (ORDER BY), ring by sp_sequence_get_range as "
            "dbq_owner: rights on the sequence are nobody else's",
            "callers need UPDATE on the sequence, or a batch is stored in another order",
            _execute_alone,
        ),
        Question(
            "identity-order",
            "identities follow the ORDER BY of INSERT ... SELECT",
            "fifo and stack: the order of the messages of one push_many",
            "messages of one batch come in another order than they were given",
            _identity_order,
            BOTH,
        ),
        Question(
            "smaller-cache",
            "ALTER SEQUENCE ... CACHE keeps the next number",
            "upgrade: it makes the caches of existing rings smaller, beside calls",
            "each upgrade of a ring skips numbers, for which pops look in vain",
            _smaller_cache,
        ),
        Question(
            "describe",
            "the server describes no procedure that calls sp_sequence_get_range",
            "nothing any more: pause --push has the columns from the templates",
            "the server could be asked; nothing is wrong",
            _describe,
            everywhere=False,
        ),
        Question(
            "index-zero",
            "dm_db_index_physical_stats gives nothing for index id 0 of a clustered table",
            "maintain: fragmentation of a heap is asked with id 0, of an index with its own",
            "maintain shows a table's fragmentation twice",
            _index_zero,
            everywhere=False,
        ),
    )
}
