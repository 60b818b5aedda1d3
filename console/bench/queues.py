"""The designs as contestants: scratch queues, and their public functions as prepared calls."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from sqlalchemy import TextClause
from sqlalchemy.dialects import postgresql

from console import catalog, sql
from console.bench.contestant import Contestant, LeftRow
from console.bench.names import PREFIX
from console.catalog import Queue, installed_queue
from console.designs import Design, design, designs_on
from console.engines import Database, Product
from console.errors import UsageError

Scratching = Callable[[Database, Queue], AbstractContextManager[None]]
"""Installs a queue for as long as the context is open, whatever ends it."""

LIBPQ = "console.bench.prepared"
_DRIVERS = {"postgresql": LIBPQ}
_ANY_DRIVER = "console.bench.blocking"

# libpq wants $1 where SQLAlchemy has :name.
_NUMBERED = postgresql.dialect(paramstyle="numeric_dollar")  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class _Code:
    code: int


def contestant(
    words: str, product: Product, batch: int, more_options: Mapping[str, str] | None = None
) -> Contestant:
    """Of `ring`, or of `fifo:order=strict:notify=on`. UsageError for what there is not."""
    name, *given = words.split(":")
    of = design(name, product.name)
    options = dict(more_options or {})
    for option in given:
        key, equals, value = option.partition("=")
        if not equals:
            raise UsageError(f"{option!r} is no option.", next_step="Example: fifo:order=strict")
        options[key] = value
    complete = of.complete_options(options, product.name)
    if complete["payload"] != "text":
        raise UsageError("The bench pushes text.", next_step="Leave payload=text.")
    return Contestant(
        name=" ".join([name, *(f"{key}={value}" for key, value in options.items())]),
        design=name,
        batch=batch,
        driver=driver(product, "run_queue"),
        order=of.order_with(complete),
        options=options,
    )


def driver(product: Product, what: str) -> str:
    """The best there is for the engine."""
    return f"{_DRIVERS.get(product.name, _ANY_DRIVER)}:{what}"


def all_designs(product: Product) -> list[str]:
    """The names of those that the engine has."""
    return list(designs_on(product.name))


class Queues:
    """Where the designs get their queues: installed as any other, under names that tell."""

    def __init__(self, database: Database, schema: str, token: str, scratching: Scratching) -> None:
        self._database = database
        self._schema = schema
        self._token = token
        self._scratching = scratching

    def queue(self, contestant: Contestant, payload: int) -> Queue:
        """The queue that a round would get. UsageError where it cannot hold such payloads."""
        of: Design = design(contestant.design, self._database.product.name)
        options = dict(contestant.options)
        limit = of.option("max_bytes")
        if limit.default != "unlimited" and "max_bytes" not in options:
            # A slot is as wide as the largest payload: no wider than what is measured.
            options["max_bytes"] = limit.check(str(payload))
        complete = of.complete_options(options, self._database.product.name)
        name = f"{PREFIX}{self._token}_{of.name}"
        return installed_queue(self._schema, name, of, complete)

    @contextmanager
    def scratch(self, contestant: Contestant, payload: int) -> Iterator["ScratchQueue"]:
        """One queue, for one round."""
        queue = self.queue(contestant, payload)
        with self._scratching(self._database, queue):
            yield ScratchQueue(self._database, queue, contestant.driver)


class ScratchQueue:
    """A queue of one round."""

    def __init__(self, database: Database, queue: Queue, driver: str) -> None:
        self._database = database
        self._queue = queue
        self._driver = driver

    @property
    def settings(self) -> Mapping[str, object]:
        """The calls, and whether a pop has to be finished."""
        known = sql.statements(self._database.product.name, "bench")
        calls = [name for name in _CALLS if name in known]
        if not self._queue.finishes:
            calls = [name for name in calls if not name.startswith("complete")]
        return {
            "calls": {name: self._call(name) for name in calls},
            "finishes": self._queue.finishes,
            "id_type": self._queue.design.id_type,
        }

    @property
    def schema(self) -> str:
        """Where its tables are."""
        return self._queue.schema

    @property
    def tables(self) -> Sequence[str]:
        """All names that its tables can have."""
        return catalog.object_names(self._database.product, self._queue)

    def left(self, filler: bytes) -> list[LeftRow]:
        """Counted and checked in the database."""
        return self._of_codes("left", LeftRow, filler)

    def left_codes(self, filler: bytes) -> list[int]:
        """Each of them."""
        return [row.code for row in self._of_codes("left_codes", _Code, filler)]

    def _of_codes(self, name: str, row_type: type[sql.Row], filler: bytes) -> list[sql.Row]:
        product = self._database.product
        known = sql.statements(product.name, "bench")
        steps = [("held", known["held"]), ("codes", known["codes"])]
        scope = self._queue.scope(product)
        query = sql.piped(steps, known[name], product.dialect, scope)
        with self._database.transaction("count what is left", read_only=True) as connection:
            result = connection.execute(query, {"filler": filler.decode()})
            return sql.rows_of(result.keys(), result.fetchall(), row_type, known[name].label)

    def _call(self, name: str) -> str:
        product = self._database.product
        statement = sql.statements(product.name, "bench")[name]
        rendered = sql.query(statement, product.dialect, self._queue.scope(product))
        return call_text(rendered, self._driver)


_CALLS = ("push", "push_many", "pop", "pop_many", "complete", "complete_many")


def call_text(rendered: TextClause, driver: str) -> str:
    """A statement as a driver takes it: with $1 for libpq, else with SQLAlchemy's :name."""
    if driver.startswith(LIBPQ):
        return str(rendered.compile(dialect=_NUMBERED))
    return rendered.text
