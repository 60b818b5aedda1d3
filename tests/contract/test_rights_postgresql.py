"""The shipped roles: what the server itself refuses, regardless of the console's checks."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass

import pytest
from sqlalchemy import text

from console import catalog
from console.actions import execute, maintain, maintenance, message_action, relay
from console.actions.install import uninstall
from console.actions.restore import Restore
from console.catalog import Queue
from console.catalog.audit import Outcome
from console.cli.commands.roles import role_script
from console.clock import utc
from console.designs import design
from console.engines import PRODUCTS, Database, open_database
from console.errors import RefusedError
from console.features.demo.embedded import EmbeddedServer
from console.features.notify.outbox import Changes, New, Outbox, lacks_rights
from console.features.presets.adopt import adopt
from console.monitor.filters import parse
from console.monitor.sampler import probe
from tests.contract.client import Client
from tests.contract.installs import installed
from tests.contract.test_actions import action_for
from tests.contract.variants import ALL, DEFAULTS, Variant, on
from tests.servers import READ_CATALOG, connect, login, value

PRODUCT = PRODUCTS["postgresql"]
WITH_ALL_OPTIONS = [
    next(v for v in reversed(on("postgresql", ALL)) if v.design is default.design)
    for default in on("postgresql", DEFAULTS)
]
"""Each design with as many options as can be combined, so with all its objects."""
IN_HAND = Variant(design("ring"), {"size": "30", "in_hand": "on", "notify": "on"})
QUEUES = {f"{number} {v.design.name}": v for number, v in enumerate([*WITH_ALL_OPTIONS, IN_HAND])}
EACH_QUEUE = pytest.mark.parametrize("name", QUEUES)


@dataclass(frozen=True)
class Site:
    """A database with the roles, a login of each, and queues installed before and after them."""

    url: str
    by: dict[str, Database]

    def client(self, login: str, name: str) -> Client:
        database = self.by[login]
        with database.transaction("look") as connection:
            return Client(database, catalog.find(connection, name))


@pytest.fixture(scope="module")
def site(module_server: EmbeddedServer) -> Iterator[Site]:
    """Half of the queues are installed before the roles are made, by a superuser."""
    url = module_server.create_database("rights")
    owner = open_database(url)
    names = list(QUEUES)
    before = [_install(owner, name) for name in names[::2]]
    with connect(url) as connection:
        connection.execute("REVOKE CONNECT ON DATABASE rights FROM PUBLIC")
        for _ in range(2):  # a second time changes nothing
            connection.execute(role_script(PRODUCT, "public", before).encode())
    for name in names[1::2]:
        _install(owner, name)
    by = {"owner": owner}
    with ExitStack() as logins:
        for who in ("reader", "operator", "admin"):
            theirs = logins.enter_context(login(url, f"GRANT dbq_{who} TO {{}}"))
            by[who] = logins.enter_context(closing(open_database(theirs)))
        yield Site(url, by)
    owner.close()


def _install(database: Database, name: str) -> Queue:
    client = installed(database, QUEUES[name], name)
    client.push_many(client.payloads(1, 2, 3))
    return client.queue


def maintain_can_be_granted(site: Site) -> bool:
    """From PostgreSQL 17 on; before, only an owner can maintain."""
    version = value(site.url, "SHOW server_version_num")
    assert isinstance(version, str)
    return int(version) >= 170_000


def can(site: Site, login: str, *names: str) -> tuple[str, ...]:
    """What the login can do with these queues, by its own probe."""
    database = site.by[login]
    found = probe(database, [site.client(login, name).queue for name in names])
    assert found is not None
    return found.can


def test_rights_are_probed_without_any_queue(site: Site) -> None:
    assert (can(site, "reader"), can(site, "operator")) == ((), ("end sessions",))


def test_execute_without_rights_to_the_tables_permits_no_pop(module_server: EmbeddedServer) -> None:
    """PostgreSQL lets everybody call a function by default, but without rights to its tables."""
    with closing(open_database(module_server.create_database("public execute"))) as owner:
        queue = _install(owner, next(iter(QUEUES)))
        url = owner.url.render_as_string(hide_password=False)
        may_read = f'GRANT SELECT ON public."{queue.table}" TO {{}}'
        with (
            login(url, *READ_CATALOG, may_read) as theirs,
            closing(open_database(theirs)) as reader,
        ):
            found = probe(reader, [queue])
            assert found is not None
            assert found.can == ()
            with pytest.raises(RefusedError):
                Client(reader, queue).pop()


@EACH_QUEUE
def test_a_reader_sees_everything_and_is_refused_every_write(site: Site, name: str) -> None:
    client, owners = site.client("reader", name), site.client("owner", name)
    held = owners.status()
    assert client.database.capabilities.sees_all_sessions
    assert client.status().ready == held.ready
    assert can(site, "reader", name) == ()
    if "relay" in client.queue.verbs:
        seen, there = (relay.measure(one.database, one.queue)[0] for one in (client, owners))
        assert seen.live == there.live > 0
    attempts: list[Callable[[], object]] = [
        lambda: client.push(client.payload(9)),
        lambda: client.push_many(client.payloads(9)),
        client.pop,
        lambda: client.pop_many(1),
        lambda: uninstall(client.database, client.queue, keep_archive=False, with_messages=True),
    ]
    if client.queue.finishes:
        attempts.append(lambda: _finish(client))
    if "relay" in client.queue.verbs:
        attempts.append(lambda: relay.relay(client.database, client.queue, 50))
    for attempt in attempts:
        with pytest.raises(RefusedError, match=r"Could not|Nothing was started"):
            attempt()
    for statement in _writes(client.queue):
        with pytest.raises(RefusedError), client.database.transaction("write") as connection:
            connection.execute(text(statement.replace(":", "\\:")))
    after = owners.status()
    assert (after.ready, after.next_push, after.next_pop) == (
        held.ready,
        held.next_push,
        held.next_pop,
    )


def _finish(client: Client) -> None:
    with client.database.transaction("fail") as connection:
        connection.execute(text(f'SELECT public."{client.queue.name}_complete"(NULL)'))


def _writes(queue: Queue) -> Iterator[str]:
    """Statements that bypass the functions."""
    tables = [queue.table, f"{queue.name}_archive"]
    tables += [f"{queue.name}_data"] * (queue.design.name == "split")
    if queue.design.name == "ring":
        tables += [f"{queue.name}_{part}" for part in ("config", "parked")]
        yield f"SELECT nextval('public.\"{queue.name}_push_seq\"')"
        yield f"SELECT setval('public.\"{queue.name}_pop_seq\"', 1)"
    for table in tables:
        yield f'DELETE FROM public."{table}"'
        yield f'TRUNCATE public."{table}"'
        yield f'LOCK TABLE public."{table}" IN SHARE MODE'
        yield f'ALTER TABLE public."{table}" ADD x int'
    yield "DELETE FROM dbq.queue"
    yield "DELETE FROM dbq.action"
    yield "UPDATE dbq.action SET outcome = 'done'"
    yield "INSERT INTO dbq.setting (name, value) VALUES ('production', 'off')"
    yield from (f"DELETE FROM dbq.{name}" for name in ("pause", "protection", "silence", "note"))
    yield "INSERT INTO dbq.lease VALUES ('recorder', 'mine', now())"
    yield "DELETE FROM dbq.notification"
    yield "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'postgres'"
    yield "CREATE TABLE public.mine (x int)"


def test_a_reader_cannot_vacuum_or_reindex(site: Site) -> None:
    """VACUUM of another owner's table only warns and does nothing; REINDEX fails."""
    reader = site.by["reader"]
    notices: list[str] = []
    with reader.autocommit("vacuum") as connection:
        driver = connection.connection.driver_connection
        assert driver is not None
        driver.add_notice_handler(lambda notice: notices.append(notice.message_primary))
        connection.exec_driver_sql('VACUUM public."0 naive"')
    assert any("permission denied" in notice for notice in notices)
    with pytest.raises(RefusedError), reader.autocommit("reindex") as connection:
        connection.exec_driver_sql('REINDEX TABLE public."0 naive"')


def test_a_maintenance_step_that_the_server_skips_is_reported_as_failed(site: Site) -> None:
    """VACUUM and ANALYZE without rights to the table end without an error."""
    name = next(iter(QUEUES))
    for who, outcome in {"operator": Outcome.FAILED, "owner": Outcome.DONE}.items():
        client = site.client(who, name)
        steps = tuple(
            maintenance.MaintainStep(what, "action", "a test", (f"{what} dbq.action",))
            for what in ("VACUUM", "ANALYZE")
        )
        measures = maintenance.measure(client.database, client.queue)
        planned = maintenance.Maintenance(client.queue, measures, steps)
        done = maintain.maintain(client.database, planned)
        assert done.outcome is outcome
        refused = 2 if who == "operator" else 0
        assert (done.done, done.problem.count("permission denied")) == (2 - refused, refused)


@EACH_QUEUE
def test_an_operator_can_move_messages_but_not_relay_or_uninstall(site: Site, name: str) -> None:
    client = site.client("operator", name)
    maintains = ("maintain",) if maintain_can_be_granted(site) else ()
    works = ("write", "push and pop", "end sessions", *maintains)
    assert can(site, "operator", name) == works
    assert can(site, "admin", name) == (*works, "create")
    assert can(site, "owner", name)[0] == "superuser"
    assert client.push(client.payload(7)) is not None
    assert None not in client.push_many(client.payloads(8, 9))
    taken = client.pop_many(6)
    assert len(taken) == 6
    if client.queue.finishes:
        assert client.complete(taken[0])
        assert client.fail(taken[1], "no")
    if "relay" in client.queue.verbs:
        with pytest.raises(RefusedError):
            relay.relay(client.database, client.queue, 50)
    with pytest.raises(RefusedError):
        uninstall(client.database, client.queue, keep_archive=False, with_messages=True)
    if maintains:
        vacuum_all(client)
    owners = site.client("owner", name)
    owners.push_many(owners.payloads(1, 2, 3))  # as the other tests found it


def vacuum_all(client: Client) -> None:
    """Maintain the queue's tables by a login that does not own them."""
    measures = maintenance.measure(client.database, client.queue)
    tables = [table.name for table in measures.tables]
    assert tables
    quoted = [client.database.product.dialect.identifier_preparer.quote(one) for one in tables]
    steps = tuple(
        maintenance.MaintainStep("VACUUM", one, "a test", (f"VACUUM (ANALYZE) public.{one}",))
        for one in quoted
    )
    planned = maintenance.Maintenance(client.queue, measures, steps)
    done = maintain.maintain(client.database, planned)
    assert (done.done, done.problem) == (len(tables), "")


@pytest.mark.thinned(3)
@EACH_QUEUE
def test_a_reader_can_plan_what_only_an_operator_can_execute(site: Site, name: str) -> None:
    """Without the console's checks too: the server refuses the statements of the actions."""
    owners, client = site.client("owner", name), site.client("reader", name)
    operator = site.client("operator", name)
    verbs = prepare(owners)
    for verb in verbs:
        action = action_for(client, verb)
        planned = message_action.select(client.database, action)
        assert planned.count > 0
        with pytest.raises(RefusedError):
            execute.execute(client.database, action, planned)
        with (
            pytest.raises(RefusedError, match="Could not"),
            client.database.transaction("act") as connection,
        ):
            action.apply(connection, planned.sample, 1)
    for verb in verbs:
        action = action_for(operator, verb)
        planned = message_action.select(operator.database, action, parse(["limit=1"]))
        done = execute.execute(operator.database, action, planned)
        assert (done.outcome, done.ledger.out) == (Outcome.DONE, 1), verb
    back = Restore(action_for(operator, "purge").source)
    done = execute.execute(operator.database, back, message_action.select(operator.database, back))
    assert (done.outcome, done.ledger.out) == (Outcome.DONE, 1)


def test_an_operators_recorder_sends_notifications_and_a_readers_cannot(site: Site) -> None:
    outbox = Outbox(site.by["operator"])
    assert outbox.lease.hold()
    words = {"target": "x", "schema": "public", "queue": "q", "code": "bloat", "which": ""}
    begun = New(**words, severity="warning", summary="", begun_at=utc())
    (entry,) = outbox.write(Changes((begun,)), {}).values()
    assert not outbox.write(Changes(withdrawn=(entry,)), {entry.notification_id: entry})
    outbox.lease.give_back()
    with pytest.raises(RefusedError, match="lease") as refused:
        Outbox(site.by["reader"]).lease.hold()
    assert lacks_rights(refused.value)


def prepare(client: Client) -> list[str]:
    """Make a message in each state, two of them errors; the verbs that then have work."""
    client.push_many(client.payloads(1, 2, 3, 4))
    if client.queue.finishes:
        *failed, done, _ = client.pop_many(4)
        assert all(client.fail(message, "boom") for message in failed)
        assert client.complete(done)
        client.push_many(client.payloads(5))
    return [
        verb
        for verb in ("archive", "requeue", "release", "purge")
        if verb in client.queue.verbs and (verb != "release" or client.queue.finishes)
    ]


def test_an_admin_installs_and_owns_what_it_installed(site: Site) -> None:
    admin = site.by["admin"]
    for variant in on("postgresql", DEFAULTS):
        client = installed(admin, variant, f"admin's {variant.design.name}")
        queue = client.queue
        client.push_many(client.payloads(1, 2))
        others = site.client("operator", queue.name)
        assert len(others.pop_many(2)) == 2
        if "relay" in queue.verbs:
            relay.relay(admin, queue, 500)
        uninstall(admin, queue, keep_archive=False, with_messages=True)
    with pytest.raises(RefusedError):
        uninstall(
            admin, site.client("owner", "0 naive").queue, keep_archive=False, with_messages=True
        )
    with site.by["owner"].transaction("make a table") as connection:
        connection.execute(text("CREATE TABLE public.theirs (id int, body text)"))
    with pytest.raises(RefusedError, match="belongs to"):  # it may not even read it
        adopt(admin, "public", "theirs", design("fifo"), {"id": "id", "payload": "body"})
    with site.by["owner"].transaction("let them read it") as connection:
        connection.execute(text("GRANT SELECT ON public.theirs TO dbq_reader"))
    adopt(admin, "public", "theirs", design("fifo"), {"id": "id", "payload": "body"})


def test_without_the_roles_nothing_is_granted(database_url: str) -> None:
    """Without the script of the roles an install leaves PostgreSQL's default privileges."""
    database = open_database(database_url)
    installed(database, DEFAULTS[0])
    with database.transaction("look") as connection:
        granted = connection.execute(
            text("SELECT relacl FROM pg_class WHERE oid = 'public.q'\\:\\:regclass")
        ).scalar_one()
    database.close()
    assert granted is None
