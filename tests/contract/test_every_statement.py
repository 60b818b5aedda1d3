"""Every statement of `queries/` is run, and every row has the types of its dataclass."""

import dataclasses
import functools
import re
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, get_args, get_type_hints
from uuid import UUID

import pytest
import sqlalchemy
from sqlalchemy import Connection, MetaData, Table, event
from sqlalchemy.engine import Engine
from sqlalchemy.schema import CreateSequence, CreateTable

from console import catalog, sql
from console.actions import (
    broker,
    execute,
    maintenance,
    message_action,
    pause,
    pop,
    push,
    relay,
    upgrade,
)
from console.actions.archive import Purge
from console.actions.canary import CanaryTracker
from console.actions.forget import forget
from console.actions.install import install, missing_requirement, uninstall
from console.actions.message_action import MessageAction
from console.actions.pop import Finish, PoppedMessage
from console.actions.requeue import Release, RequeueTo
from console.actions.reschedule import Reschedule
from console.actions.restore import Restore
from console.actions.rows import SelectionCriteria
from console.actions.selected import SelectedError
from console.catalog import decisions
from console.designs import DESIGNS, Flow, Order, designs_on
from console.engines import Database
from console.engines.standby import Standby
from console.errors import UsageError
from console.features.presets import adopt
from console.features.presets.designs import LIBRARIES
from console.figures import COUNTED
from console.monitor.consumer_watch import ConsumerWatch
from console.monitor.errors import error_groups
from console.monitor.filters import NOTHING, parse
from console.monitor.memory import Memory
from console.monitor.messages import read_page
from console.monitor.overdue import overdue
from console.monitor.sample import estimates, take_sample
from console.monitor.sampler import probe
from console.monitor.scan_query import locks_next
from console.monitor.waits import watch
from console.rights import Rights
from console.sql import templates
from console.verbs import get_verb
from console.verbs.verb import Target
from tests.contract.client import Client
from tests.contract.installs import installed
from tests.contract.message_actions import source_of
from tests.contract.variants import ALL, Variant, default, on
from tests.tools.pairs import covering, pairs_of

OF_ONE_DESIGN = {"status_check", "done_lag", "missing_payloads", "fail_missing_payloads", "bottom"}
OF_ONE_DESIGN |= {"orphaned_payloads", "status_unknown", "state_illegal"}
"""Statements of the doctor for single designs, in their files."""
_HEAD = re.compile(r"\s*/\* dbq (?P<label>[\w.+]+) \*/")


@contextmanager
def labels_run() -> Iterator[set[str]]:
    """The labels, from their comments, of all statements that a server ran without an error."""
    labels: set[str] = set()

    def ran(connection: Connection, cursor: object, statement: str, *rest: object) -> None:
        if match := _HEAD.match(statement):
            labels.update(match["label"].split("+"))

    event.listen(Engine, "after_cursor_execute", ran)
    try:
        yield labels
    finally:
        event.remove(Engine, "after_cursor_execute", ran)


@contextmanager
def rows_checked(patch: pytest.MonkeyPatch) -> Iterator[set[type]]:
    """Check that every row has the types of its dataclass; the row types that occurred."""
    filled: set[type] = set()
    unchecked = sql.rows_of

    def rows_of(names: object, rows: object, row_type: type, label: str) -> list[object]:
        made: list[object] = unchecked(names, rows, row_type, label)
        hints = _hints(row_type)
        for row in made:
            for field in dataclasses.fields(row_type):
                value = getattr(row, field.name)
                assert _has_type(value, hints[field.name]), (
                    f"{label}: {field.name} is {value!r}, no {hints[field.name]}"
                )
            filled.add(row_type)
        return made

    unchecked_values = sql.values_of

    def values_of(names: object, rows: object, type_: Any, label: str) -> list[object]:
        made: list[object] = unchecked_values(names, rows, type_, label)
        for value in made:
            assert _has_type(value, type_), f"{label}: {value!r} is no {type_}"
        return made

    with patch.context() as inner:
        inner.setattr(sql, "rows_of", rows_of)
        inner.setattr(sql, "values_of", values_of)
        yield filled


_hints = functools.cache(get_type_hints)


def _has_type(value: object, hint: object) -> bool:
    if hint is Any:
        return True
    allowed = get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    # An int is not accepted as a float: a rate that is an integer is wrong in SQL.
    return type(value) in allowed


def ring_statements(engine: str, *parts: str) -> set[str]:
    """The labels of these parts of the ring; none if the engine has none."""
    texts = templates.texts(engine, "ring")
    return {
        f"ring.{name}"
        for part in parts
        for name in re.findall(r"^-- name: (\w+)$", texts.get(f"ring/{part}.sql", ""), re.MULTILINE)
    }


def all_labels(engine: str) -> set[str]:
    values_views = (templates.statements(engine, file).values() for file in templates.files(engine))
    return {statement.label for statements in values_views for statement in statements}


def use_everything(database: Database, variant: Variant, *, acts: bool) -> None:
    """Everything that the console does with a queue, once; verbs only if `acts`."""
    client = installed(database, variant, f"life {variant}"[:40])
    queue = client.queue
    client.push_many(client.payloads(*range(6)))
    push.push_waiting(database, queue, client.payload(6), 0.0)
    fail_to_deliver(client)
    if variant.order is Order.DUE:
        with database.transaction("push") as connection:
            more = push.PushExtras(due_in_seconds=0.0)
            push.push_many_with(connection, queue, client.payloads(7), more)
            assert overdue(connection, queue).messages == 0
    if variant.design.flow is Flow.NUMBERS:
        relay.relay(database, queue, None)
        relay.plan(database, queue)
    finish_some(client)
    taken: list[PoppedMessage] = []
    assert read_page(database, queue, payload_bytes=10).messages
    if queue.finishes:
        assert error_groups(database, queue).groups
    if queue.keeps_history:
        (error, *_) = read_page(database, queue, parse(["state=error"])).messages
        (error,) = read_page(database, queue, parse([f"id={error.id}"])).messages
        assert error.history
    pop.pop(database, queue, taken.extend, count=9, wait_seconds=0.02)
    pop.pop(database, queue, taken.extend, wait_seconds=0.02)
    take_sample(database)
    assert probe(database, [queue]) is not None
    assert ConsumerWatch(database).sample([queue], {})
    assert not upgrade.plan(database, queue).needed
    assert maintenance.find(database, queue).measures.tables
    estimate_depths(client)
    if acts:
        act(client)
        make_decisions(client)
    keeps_archive = variant.options.get("archive_at_pop") == "on"
    uninstall(database, queue, keep_archive=keeps_archive, with_messages=True)
    if keeps_archive:
        with database.transaction("look") as connection:
            left = catalog.find(connection, queue.name)
        uninstall(database, left, keep_archive=False, with_messages=True)


def act(client: Client) -> None:
    """Each verb on messages: purge and restore, to another queue, permanently."""
    queue = client.queue
    source = source_of(client)
    client.push_many(client.payloads(*range(3)))
    if not queue.design.waits_itself:
        if not locks_next(source.product):
            read_what_is_chosen(client, Purge(source))
        if not source.why_not_by_age("ready"):
            run(client, Purge(source), "state=ready", "keep-newest=1")
    run(client, Purge(source))
    read_what_is_chosen(client, Restore(source))
    run(client, Restore(source))
    if queue.finishes:
        other = installed(
            client.database, default("fifo", payload=queue.options["payload"]), "other"
        )
        for message in client.pop_many(2)[:1]:
            client.fail(message, "no")
        action_plan = message_action.select(
            client.database, Release(source, stuck_after_seconds=0.0)
        )
        assert any(line.startswith("alive: ") for line in action_plan.consequences)
        tracker = CanaryTracker(source)
        gone = str(UUID(int=0)) if source.id_type in {"uuid", "uniqueidentifier"} else "0"
        with client.database.transaction("follow") as connection:
            tracker.begin(connection, [SelectedError(gone, 1, "").message])
            assert tracker.results(connection).done == (gone,)
        run(client, RequeueTo(source, to=source_of(other)))
        run(client, Release(source, stuck_after_seconds=0.0, force=True))
        uninstall(other.database, other.queue, keep_archive=False, with_messages=True)
    if queue.design.waits_itself:
        assert not broker.enable_queue(client.database, queue).done
        broker.plan_end(client.database, queue).run_to_end()
    if "reschedule" in queue.verbs:
        client.push(client.payload(9))
        run(client, Reschedule(source, at=datetime(2020, 1, 1, tzinfo=UTC)))
    run(client, Purge(source, permanently=True))


def read_what_is_chosen(client: Client, action: MessageAction) -> None:
    """As a batch does after an error of one of its rows."""
    moment = datetime.now(UTC) + timedelta(minutes=1)
    with client.database.session("choose") as session:
        criteria = SelectionCriteria(client.database, session, NOTHING, action.states, moment)
        chosen = action.select(criteria).choose(10, action.grouping, action.group_limit)
        assert chosen is not None
        with session.transaction("read what was chosen") as connection:
            read = chosen.read(connection)
        expected = action.select(criteria).next(10)
    if not action.in_queue:  # found by its key alone
        assert [message.key for message in read] == [message.key for message in expected] != []
        return
    seen, wanted = ({(m.id, m.attempts, m.number) for m in some} for some in (read, expected))
    assert (len(read), seen) == (3, wanted)


def make_decisions(client: Client) -> None:
    """Each decision of an operator, and its revocation."""
    database, queue = client.database, client.queue
    target = Target(database, queue, Rights.ADMIN)
    assert pause.callers(database, queue) == 0
    pause.pause(database, queue, reason="bad release", seconds=60.0, push=False)
    get_verb("protect").plan(target, {"reason": None}).run_to_end()
    with database.transaction("look", read_only=True) as connection:
        assert {decision.kind for decision in decisions.active(connection)} == {
            "pause",
            "protection",
        }
    get_verb("unprotect").plan(target, {}).run_to_end()
    get_verb("note").plan(target, {"text": "deployed 1.4", "all": False}).run_to_end()
    with database.transaction("read the notes", read_only=True) as connection:
        assert decisions.notes(connection, queue.schema, queue.name, 10)
    get_verb("silence").plan(target, {"code": "bloat", "for": 60.0, "reason": None}).run_to_end()
    get_verb("unsilence").plan(target, {"code": "bloat"}).run_to_end()
    pause.resume(database, queue)


def run(client: Client, action: MessageAction, *filters: str) -> None:
    action_plan = message_action.select(client.database, action, parse(filters))
    done = execute.execute(client.database, action, action_plan)
    assert done.ledger.out == action_plan.count > 0


def estimate_depths(client: Client) -> None:
    """As a sample does if a state has more rows than are counted."""
    product, queue = client.database.product, client.queue
    counted = queue.finishes or queue.design.flow is not Flow.NUMBERS
    if counted and sql.has(product, f"{queue.design.name}.estimate"):
        with client.database.transaction("estimate", read_only=True) as connection:
            deep = dataclasses.replace(client.status(), ready=COUNTED + 1)
            assert estimates(connection, [(queue, deep)], Memory())


def fail_to_deliver(client: Client) -> None:
    def broken_pipe(_: Sequence[PoppedMessage]) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        pop.pop(client.database, client.queue, broken_pipe)


def finish_some(client: Client) -> None:
    if not client.queue.finishes:
        return
    nothing: list[PoppedMessage] = []
    for finish in (Finish.COMPLETE, Finish.FAIL):
        pop.pop(client.database, client.queue, nothing.extend, finish=finish, error="no")


def adopt_and_forget(database: Database) -> None:
    """With a ring, because of its sequences."""
    schema = database.product.default_schema
    kinds: dict[str, sqlalchemy.types.TypeEngine[Any]]
    kinds = {"slot": sqlalchemy.Integer(), "number": sqlalchemy.BigInteger()}
    kinds |= {"refs": sqlalchemy.Integer(), "body": sqlalchemy.Text()}
    columns = [sqlalchemy.Column(name, kind) for name, kind in kinds.items()]
    with database.transaction("make a table") as connection:
        connection.execute(CreateTable(Table("theirs", MetaData(), *columns, schema=schema)))
        for sequence in ("pushes", "pops"):
            connection.execute(CreateSequence(sqlalchemy.Sequence(sequence, schema=schema)))
    roles = {"slot": "slot", "id": "number", "payload": "body", "reference_count": "refs"}
    roles |= {"push_sequence": "pushes", "pop_sequence": "pops", "size": "10"}
    queue = adopt.adopt(database, schema, "theirs", DESIGNS["ring"], roles)
    take_sample(database)
    forget(database, queue)


def hold_a_lease(database: Database) -> None:
    """Of two that want it one gets it, and renews it until the other may have it."""
    with database.transaction("hold a lease") as connection:
        assert sql.value(connection, str, "catalog.identity")
        first = catalog.take_lease(connection, "a test", "ann", 60.0)
        assert (first.holder, first.until.tzinfo is not None) == ("ann", True)
        assert catalog.take_lease(connection, "a test", "bob", 60.0) == first
        for holder, renewed in (("ann", ["ann"]), ("bob", [])):
            values = {"name": "a test", "holder": holder, "seconds": 60.0}
            assert sql.values(connection, str, "catalog.lease_renew", **values) == renewed
        assert catalog.take_lease(connection, "a test", "bob", 60.0, gone="ann").holder == "bob"
        catalog.end_lease(connection, "a test", "ann")
        assert catalog.take_lease(connection, "a test", "ann", 60.0).holder == "bob"
        catalog.end_lease(connection, "a test", "bob")


def block_a_relay(database: Database, variant: Variant) -> None:
    """Plan a relay that an open transaction blocks."""
    client = installed(database, variant, f"blocked {variant}"[:40])
    queue = client.queue
    client.push(client.payload(0))
    with database.transaction("pop") as connection:
        pop.pop_many(connection, queue, 1)
        blockers = relay.measure(database, queue)[1]
        if "sessions" not in database.capabilities.missing:
            (blocker,) = [found for found in blockers if found.state == "idle in transaction"]
            assert "in transaction for" in blocker.line
        assert watch(database, [queue], seconds=0).connection == database.label
    with pytest.raises(UsageError):
        install(database, queue)  # names the objects that exist already
    uninstall(database, queue, keep_archive=False, with_messages=True)


def variants_to_use(engine: str, *, long: bool) -> list[Variant]:
    """All variants; in the short tier as few as cover every pair."""
    every = list(on(engine, ALL))
    chosen = covering(
        [frozenset(pairs_of("a life", [variant], payload=False)) for variant in every]
    )
    return [of for number, of in enumerate(every) if long or number in chosen]


def test_every_statement_runs_and_fills_its_row_type(
    database: Database, monkeypatch: pytest.MonkeyPatch, long: bool
) -> None:
    engine = database.product.name
    with labels_run() as labels, rows_checked(monkeypatch) as filled:
        assert database.capabilities.version_number > 0
        acted: set[str] = set()
        for variant in variants_to_use(engine, long=long):
            if missing_requirement(database, variant.design):
                continue
            use_everything(database, variant, acts=variant.design.name not in acted)
            acted.add(variant.design.name)
            if "relay" in variant.design.verbs:
                block_a_relay(database, variant)
        adopt_and_forget(database)
        hold_a_lease(database)
        with database.transaction("read whether it is a standby") as connection:
            catalog.read(connection, catalog.Catalog())  # as a sampler does, which keeps it
            # A primary that reports it by itself is not asked otherwise.
            assert not sql.rows(connection, Standby, "server.standby")
        assert "theirs" in {table.name for table in adopt.tables(database)}
    every = all_labels(engine)
    # Roles belong to the whole cluster: see test_rights_postgresql. Babelfish is only queried if
    # the first query fails: see unit/test_mssql_capabilities. Service Broker enables only disabled
    # queues. An upgrade of a paused queue: see test_pause.
    left_out = {"roles.roles", "server.babelfish", "catalog.renew", "broker.enable", "pause.renew"}
    # Sent without SQLAlchemy: cli/test_poolers, pipeline/test_archive.
    left_out |= {"server.session_settings", "server.task_settings"}
    # Subscribers: see test_subscribers and faults/test_subscribers.
    left_out |= ring_statements(engine, "subscribers") - labels
    left_out |= {"catalog.set_options", "common.retried", "common.claimed", "common.contradictions"}
    # Tables of others: test_others_code_, test_types_of_others_; whose they are: test_owners_.
    left_out |= {"roles.owner", "roles.others", "roles.adopted"}
    left_out |= {"actions.owner", "actions.reset_path"}
    left_out |= {"actions.cascades", "actions.delete_triggers"}
    # Statements of the doctor for a ring: see faults/test_doctor_ring.
    left_out |= {*ring_statements(engine, "repair", "content"), "ring.slot_map"} - labels
    # Separate tests: test_maintain_, test_upgrade_, test_end_session_.
    elsewhere = {"maintenance", "sessions", "upgrade"}
    # Recorders: test_notifications. The doctor: faults/test_doctor_queues, _scans. Partitioned
    # tables: test_pgmq_postgresql. Libraries: test_libraries_postgresql, cli/test_presets.
    elsewhere |= {"notify", "doctor", "notify_queue", "partitions", "preset", "own", *LIBRARIES}
    # tests/pipeline, tests/bench and test_prove, in part not through SQLAlchemy.
    elsewhere |= {"pipeline", "copy", "replay", "bench", "prove"}
    elsewhere |= {
        of.name for of in designs_on(engine).values() if missing_requirement(database, of)
    }
    if "waits" in database.capabilities.missing:
        elsewhere.add("activity")
    left_out |= {found for found in every if found.partition(".")[0] in elsewhere}
    left_out -= {"maintenance.tables", "maintenance.indexes", "upgrade.installed_code"}
    left_out -= {"doctor.indexes"}  # of an upgrade, too
    left_out -= {"pipeline.add_plan"}  # of a restore, too
    left_out |= {found for found in every if found.partition(".")[2] in OF_ONE_DESIGN}
    assert labels == every - left_out
    assert len(filled) >= 10


def test_every_statement_has_a_comment(database: Database) -> None:
    engine = database.product.name
    for file in templates.files(engine):
        for statement in templates.statements(engine, file).values():
            assert len(statement.comment) > 10, statement.label
