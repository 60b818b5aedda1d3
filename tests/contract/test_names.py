"""Names are used exactly, whatever they contain, and uninstall leaves nothing of them."""

import pytest
from sqlalchemy import text
from sqlalchemy.schema import CreateSchema

from console import catalog
from console.actions import pop, relay
from console.actions.install import install, uninstall
from console.catalog import object_names
from console.designs import DESIGNS, Design
from console.engines import Database, Product
from console.errors import UsageError
from console.monitor.sample import take_sample
from tests.contract.client import Client
from tests.contract.installs import all_designs
from tests.contract.leftovers import objects_of
from tests.contract.variants import ALL, Variant, on

pytestmark = pytest.mark.thinned(3)

NAMES = [
    "plain",
    "two words",
    " blanks at both ends ",
    "Capitals",
    "select",
    "user",
    "a.b.c",
    '"',
    'double "quotes"',
    "single 'quotes'",
    'x"; DROP TABLE y; --',
    "'); DROP TABLE y; --",
    "percent %s %d %(name)s %%",
    ":name ::text \\:name",
    "{queue}",
    "{schema} {0} {}",
    "$dbq$",
    "$dbq$ $dbq1$ $$",
    "$1",
    "back\\slash\\",
    "E'\\x'",
    "[brackets]]",
    "new\nline\ttab \x1b[31m\x9b\u202e[red]\u2028",
    "/* comment */ -- x",
    "\N{GRINNING FACE} \N{SNOWMAN}",
    "e\N{COMBINING ACUTE ACCENT}",
    "-",
    "0",
]


def with_all_options(database: Database) -> list[Variant]:
    """Each design with as many options as can be combined, so with all its possible objects."""
    those = [v for v in reversed(on(database.product.name, ALL)) if v.payload == "text"]
    return [next(v for v in those if v.design is design) for design in all_designs(database)]


def make_schema(database: Database, name: str) -> None:
    with database.transaction("make a schema") as connection:
        connection.execute(CreateSchema(name))


def use_every_verb(client: Client) -> None:
    """Every verb once."""
    database, queue = client.database, client.queue
    client.push_many(client.payloads(*range(4)))
    client.push(client.payload(4))
    assert client.pop() is not None
    taken: list[pop.PoppedMessage] = []
    pop.pop(database, queue, taken.extend, count=2, wait_seconds=1.0)
    assert len(taken) == 2
    if queue.finishes:
        first, second = client.pop_many(2)
        assert client.complete(first)
        assert client.fail(second, "no")
    if "relay" in queue.verbs:
        relay.relay(database, queue, 10)
        assert relay.measure(database, queue)[0].size == 10
    samples = {sample.queue.label: sample for sample in take_sample(database).queues}
    assert samples[queue.label].problem == ""
    nothing: list[pop.PoppedMessage] = []
    assert pop.pop(database, queue, nothing.extend, count=9, wait_seconds=0.02).delivered < 9


@pytest.mark.long
@pytest.mark.thinned(12)
@pytest.mark.parametrize("name", NAMES)
def test_every_verb_works_on_a_queue_and_schema_of_any_name(database: Database, name: str) -> None:
    make_schema(database, name)
    before = objects_of(database)
    for variant in with_all_options(database):
        client = Client(database, variant.queue(name, name))
        install(database, client.queue)
        with database.transaction("look") as connection:
            assert catalog.find(connection, name).label == f"{name}.{name}"
        use_every_verb(client)
        uninstall(database, client.queue, keep_archive=False, with_messages=True)
        assert objects_of(database) == before


def same_name(database: Database, first: str, second: str) -> bool:
    """Whether the database treats both names as equal: on SQL Server its collation decides."""
    if database.product.name != "mssql":
        return False
    same = "SELECT CASE WHEN :first = :second COLLATE DATABASE_DEFAULT THEN 1 ELSE 0 END"
    with database.transaction("compare") as connection:
        return bool(connection.scalar(text(same), {"first": first, "second": second}))


def filler(product: Product, length: int, start: str) -> str:
    """A name of this length, with as many multibyte characters as fit."""
    room, each = length - product.name_length(start), product.name_length("\N{SNOWMAN}")
    return start + "\N{SNOWMAN}" * (room // each) + "x" * (room % each)


@pytest.mark.parametrize("start", ["a", '"; --'])
@pytest.mark.parametrize("design", DESIGNS.values(), ids=lambda design: design.name)
def test_a_name_at_the_length_limit_is_accepted_and_a_longer_one_refused(
    database: Database, design: Design, start: str
) -> None:
    product = database.product
    (variant,) = (v for v in with_all_options(database) if v.design is design)
    # Service Broker's names contain the schema's name, so it must be shorter.
    schema = filler(product, product.name_limit // 2, f"{start} {design.name}")
    limit, _ = object_names.limit(product, design.name, schema)
    make_schema(database, schema)
    before = objects_of(database)
    fits, too_long = filler(product, limit, start), filler(product, limit + 1, start)
    assert (product.name_length(fits), product.name_length(too_long)) == (limit, limit + 1)

    complaint = f"too long: {limit + 1} {product.name_unit}, at most {limit}"
    with pytest.raises(UsageError, match=complaint):
        install(database, variant.queue(schema, too_long))
    assert objects_of(database) == before
    client = Client(database, variant.queue(schema, fits))
    install(database, client.queue)
    use_every_verb(client)
    uninstall(database, client.queue, keep_archive=False, with_messages=True)
    assert objects_of(database) == before


def test_a_schema_name_that_the_server_would_truncate_is_refused(database: Database) -> None:
    product = database.product
    schema = filler(product, product.name_limit, "cut")
    make_schema(database, schema)
    before = objects_of(database)
    for queue in [variant.queue(schema + "x", "q") for variant in with_all_options(database)]:
        with pytest.raises(UsageError):
            install(database, queue)
    assert objects_of(database) == before


@pytest.mark.parametrize(
    ("schema", "name", "complaint"),
    [
        (None, "", "cannot be empty"),
        ("", "q", "cannot be empty"),
        (None, "a\0b", "NUL"),
        ("a\0b", "q", "NUL"),
        (None, "\ud83d", "not valid Unicode"),
        ("\ud83d", "q", "not valid Unicode"),
    ],
)
def test_invalid_names_are_refused(
    database: Database, schema: str | None, name: str, complaint: str
) -> None:
    before = objects_of(database, with_own=True)
    for variant in with_all_options(database):
        queue = variant.queue(database.product.default_schema if schema is None else schema, name)
        with pytest.raises(UsageError, match=complaint):
            install(database, queue)
    assert objects_of(database, with_own=True) == before


@pytest.mark.long
def test_queues_of_the_same_name_in_two_schemas_are_separate(database: Database) -> None:
    make_schema(database, "first")
    make_schema(database, "second")
    for variant in with_all_options(database):
        name = f"same {variant.design.name}"
        first, second = (
            Client(database, variant.queue(schema, name)) for schema in ("first", "second")
        )
        install(database, first.queue)
        install(database, second.queue)
        first.push(first.payload(1))
        second.push(second.payload(2))
        assert first.status().ready == second.status().ready == 1
        assert first.queue.channel != second.queue.channel
        uninstall(database, first.queue, keep_archive=False, with_messages=True)
        assert [m.payload for m in second.drain()] == second.payloads(2)


def test_names_that_differ_in_case_are_two_queues_or_the_second_is_refused(
    database: Database,
) -> None:
    product = database.product
    for variant in with_all_options(database):
        names = [f"case {variant.design.name}", f"Case {variant.design.name}"]
        clients = [Client(database, variant.queue(product.default_schema, name)) for name in names]
        install(database, clients[0].queue)
        if same_name(database, *names):
            with pytest.raises(UsageError, match="is taken"):
                install(database, clients.pop().queue)
        else:
            install(database, clients[1].queue)
        for number, client in enumerate(clients):
            client.push(client.payload(number))
        for number, client in enumerate(clients):
            assert [m.payload for m in client.drain()] == client.payloads(number)
