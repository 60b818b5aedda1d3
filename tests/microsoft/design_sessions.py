"""Sessions of any design, interleaved at random: calls are cancelled, sessions and servers fail.

A printed installation says what a queue is made of: tables, keys, indexes, sequences, procedures.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from console import sql
from console.actions import install
from console.catalog import Queue
from console.designs import Order
from console.engines.mssql import PRODUCT
from tests.contract.variants import Variant
from tests.faults.harness.model import finish
from tests.microsoft import broker
from tests.microsoft.interpreter import Call, defaults
from tests.microsoft.server import AttentionError, Index, Row, Server, ServerError, Session
from tests.microsoft.texts import COMMENT, with_variables
from tests.microsoft.trees import Node
from tests.microsoft.values import Steps, column_of, inside, last

CLAIMED: dict[str, tuple[str, Callable[[Row], str]]] = {
    "claim": (
        "orders",
        lambda row: (
            "error" if row["done_at"] else "claimed" if row["processing_started_at"] else "ready"
        ),
    ),
    "status": ("orders", lambda row: ("ready", "claimed", "done", "", "error")[row["status"]]),
    "split": ("orders_meta", lambda row: ("ready", "claimed", "done", "", "error")[row["status"]]),
    "ring": ("orders_in_hand", lambda row: "error" if row["done_at"] else "claimed"),
}
"""Designs that finish what they popped: the table of it, and the state of a row."""


REPAIRS = {
    "park_orphans": "pop",
    "drop_holes": "push",
    "void_holes": "push",
    "park_spent": "pop",
    "drop_voids": "pop",
}
"""Of a ring, with the sequence whose drawn numbers each examines."""


@dataclass
class Installation:
    """What a printed installation makes."""

    variant: Variant
    parse: Callable[[str], Node]
    script: str = ""
    procedures: dict[str, Node] = field(default_factory=dict)
    definitions: dict[str, str] = field(default_factory=dict)
    keys: dict[str, tuple[str, ...]] = field(default_factory=dict)
    columns: dict[str, dict[str, Node | None]] = field(default_factory=dict)
    identities: dict[str, str] = field(default_factory=dict)
    indexes: dict[str, Index] = field(default_factory=dict)
    sequences: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.script = self.script or install.script(PRODUCT, self.queue)
        for text in re.split(r"(?m)^GO$", self.script):
            head = re.search(r"(?m)^CREATE OR ALTER PROCEDURE \[sales\]\.\[(orders_\w+)\]", text)
            tree = self.parse(text)
            assert tree, text
            if head:
                self.procedures[head[1].removeprefix("orders_")] = tree
                self.definitions[head[1]] = text[head.start() :].strip()
                continue
            for node in inside(tree):
                self._create(node)

    def _create(self, node: Node) -> None:
        kind = node["$type"]
        if kind in {"CreateTableStatement", "AlterTableAddTableElementStatement"}:
            name, definition = last(node["SchemaObjectName"]), node["Definition"]
            columns = definition["ColumnDefinitions"]
            self.columns.setdefault(name, {}).update(defaults(columns))
            for column in columns:
                if "IdentityOptions" in column:
                    self.identities[name] = column["ColumnIdentifier"]["Value"]
            keys = [c for c in definition["TableConstraints"] if "IndexType" in c]
            for key in keys[:1]:
                self.keys[name] = tuple(column_of(one["Column"]) for one in key["Columns"])
            self.keys.setdefault(name, (self.identities.get(name, ""),))
        elif kind == "CreateIndexStatement":
            names = tuple(column_of(one["Column"]) for one in node["Columns"])
            table, where = last(node["OnName"]), node.get("FilterPredicate")
            self.indexes[node["Name"]["Value"]] = Index(table, names, where)
        elif kind == "CreateSequenceStatement":
            self.sequences[last(node["Name"])] = 0

    def add(self, name: str, text: str) -> None:
        """A text with bound values that can be called as a procedure."""
        bound = sorted({*re.findall(r"@bound_\w+", text)})
        given = ", ".join(f"{one} sql_variant" for one in bound)
        head = f"CREATE OR ALTER PROCEDURE [sales].[orders_{name}] {given} AS BEGIN"
        self.procedures[name] = self.parse(f"{head}\n{text}\nEND;")

    @property
    def queue(self) -> Queue:
        return self.variant.queue("sales", "orders", "mssql")

    def statement(self, name: str, view: Queue | None = None, **options: str) -> str:
        """Add a statement of the queue, or of a subscriber's view of it; its name."""
        statement, of = sql.statement("mssql", name), view or self.queue
        called = "_".join((name.replace(".", "_"), *options.values(), of.subscriber))
        if called not in self.procedures:
            scope = of.scope_of(statement.name, PRODUCT, **options)
            (text,) = sql.batches(statement, PRODUCT.dialect, scope)
            self.add(called, with_variables(COMMENT.sub("", text)))
        return called

    def server(self, chance: Random) -> Server:
        """One with a new queue, whose caches are small so that their ends are met."""
        keys = {name: key for name, key in self.keys.items() if not name.startswith("#")}
        server = Server(keys, chance, may_wait=True)
        server.columns, server.identities = self.columns, self.identities
        server.indexes, server.parse = self.indexes, self.parse
        server.definitions = dict(self.definitions)
        server.keys = {**keys, "pause": ("schema_name", "queue_name")}
        server.tables["pause"] = {}
        if self.variant.design.name == "broker":
            server.keys |= broker.TABLES
            server.tables |= {name: {} for name in broker.TABLES}
        server.sequences = dict.fromkeys((*self.sequences, *self.identities, "ids", "messages"), 0)
        server.caches = {name: chance.randint(1, 6) for name in server.sequences}
        if self.variant.design.name == "ring":
            size = chance.randint(1, 9)
            server.fill("orders_config", {"only_row": 1, "size": size, "base": 1})
            empty = dict.fromkeys(self.columns["orders"]) | {"reference_count": 0, "time": 0}
            server.fill("orders", *({**empty, "slot": slot} for slot in range(size)))
        return server


def repair(
    made: Installation, server: Server, call_alone: Callable[..., list[Row]]
) -> Counter[str]:
    """Run the doctor's repairs of a ring, for each subscriber, when nobody uses it: how many each
    has repaired."""
    repaired = Counter[str]()
    for view in made.queue.views:
        for name, end in REPAIRS.items():
            sequence = "orders_push_seq" if end == "push" else view.roles["pop_sequence"]
            drawn = {f"bound_drawn_{end}": server.sequences[sequence] + 1}
            (row,) = call_alone(made.statement(f"ring.{name}", view), **drawn)
            assert row["selected"] == row["done"], name
            repaired[name] += row["done"]
    return repaired


class Run:
    """Sessions that push, pop and finish; what they committed."""

    def __init__(self, made: Installation, seed: int, *, faults: Sequence[str] = ()) -> None:
        self.made, self.variant, self.chance = made, made.variant, Random(seed)
        self.server = made.server(self.chance)
        self.faults = faults
        self.pushed: dict[Any, str] = {}
        """By the ids that push returned."""
        self.popped: list[Any] = []
        """Ids, in the order of the commits."""
        self.claims: dict[Any, Any] = {}
        """Popped and not finished: the attempts."""
        self.failed: set[Any] = set()
        self.done: set[Any] = set()
        self._sessions: dict[Any, int] = {}
        """Who pushed it."""
        self._serial = 0

    def call(self, session: Session, name: str, **given: Any) -> Steps:
        """Payloads are texts here, whatever they are in the queue."""
        is_bytes = self.variant.given.get("payload") == "bytes"
        if is_bytes and "payload" in given:
            given["payload"] = given["payload"].encode()
        if is_bytes and "payloads" in given:
            given["payloads"] = json.dumps(
                [t.encode().hex() for t in json.loads(given["payloads"])]
            )
        rows = yield from Call(self.made.procedures, name, session, **given).run()
        if is_bytes and name.startswith("pop"):
            return [{**row, "payload": row["payload"].decode()} for row in rows]
        return rows

    def call_alone(self, name: str, **given: Any) -> list[Row]:
        rows: list[Row] = finish(self.call(self.server.session(), name, **given))
        return rows

    def run_interleaved(self) -> None:
        running = [self._session(n) for n in range(self.chance.randint(2, 4))]
        between_faults = self.chance.choice([50, 200]) if "failover" in self.faults else 10**9
        for _ in range(100_000):
            if not running:
                break
            if not self.chance.randrange(between_faults):
                # Calls that committed have their answer already; all others end here.
                for session in running:
                    session.close()
                self.server.fail_over()
                running = [self._session(n) for n, _ in enumerate(running)]
                between_faults *= 4
            choice = self.chance.choice(running)
            # Some fall behind while others end whole transactions.
            if any(next(choice, 1) for _ in range(self.chance.choice((1, 1, 4, 30, 100)))):
                running.remove(choice)
        assert not running, "sessions that wait for ever"

    def _session(self, number: int) -> Generator[int, None, None]:  # noqa: C901
        for _ in range(self.chance.randint(1, 5)):
            session, log = self.server.session(number), Log(number)
            ending = self.chance.choice(("commit", "commit", "roll back", "die", "attention"))
            if ending == "attention" and "attention" not in self.faults:
                ending = "commit"
            calls = self.chance.randint(1, 3)
            left = self.chance.randint(1, 120) if ending in {"die", "attention"} else 10**9
            is_open = calls > 1 or ending == "roll back"
            if is_open:
                session.begin()
            steps = self._calls(session, calls, log)
            try:
                while True:
                    next(steps)
                    if session.commits and not is_open:
                        # It is committed: the answer comes, whatever happens to the server.
                        for _ in steps:
                            pass
                        assert session.commits == 1, "a call that commits twice is done by half"
                        break
                    yield 0
                    left -= 1
                    if left <= 0 and session.depth:
                        if ending == "die":
                            break
                        left = 10**9
                        steps.throw(AttentionError)
            except StopIteration:
                pass
            except ServerError:
                # Its client rolls back what is left open, as a driver's pool does.
                session.roll_back()
                log = Log(number)
            except GeneratorExit:
                steps.close()
                session.roll_back()
                raise
            self._end(session, ending, log)
            yield 0

    def _end(self, session: Session, ending: str, log: "Log") -> None:
        if session.depth and ending in {"roll back", "die"}:
            session.roll_back()
            return
        if session.depth:
            session.commit()
        self.record(log)

    def record(self, log: "Log") -> None:
        assert not self.pushed.keys() & log.pushed.keys(), "an id twice"
        self.pushed |= log.pushed
        self._sessions |= dict.fromkeys(log.pushed, log.session)
        for row in log.popped:
            self.record_pop(row)
        for id_, how in log.finished:
            assert id_ in self.claims, "finished twice"
            del self.claims[id_]
            (self.failed if how == "fail" else self.done).add(id_)

    def record_pop(self, row: Row) -> None:
        assert row["id"] not in self.popped, f"{row['id']} was popped twice"
        assert row["payload"] == self.pushed[row["id"]], "a payload of another message"
        self.popped.append(row["id"])
        if self.variant.finishes:
            self.claims[row["id"]] = row["attempts"]
        if self.variant.order is Order.STRICT:
            assert self.popped == sorted(self.popped), "out of order"

    def _calls(self, session: Session, calls: int, log: "Log") -> Generator[None, None, None]:
        for _ in range(calls):
            kinds = ["push", "pop", "push_many", "pop_many"]
            # What this transaction has popped it may finish; so may another session, later.
            known = {**self.claims, **{row["id"]: row["attempts"] for row in log.popped}}
            known = {i: a for i, a in known.items() if i not in {f for f, _ in log.finished}}
            if self.variant.finishes and known:
                kinds += ["complete", "fail"]
            yield from self._call(session, self.chance.choice(kinds), known, log)
            yield

    def _call(self, session: Session, kind: str, known: dict[Any, Any], log: "Log") -> Steps:
        if kind in {"push", "push_many"}:
            payloads = [str(self._serial + n) for n in range(self.chance.randint(1, 4))]
            self._serial += len(payloads)
            given: dict[str, Any] = {"payload": payloads[0]}
            if kind == "push_many":
                given = {"payloads": json.dumps(payloads)}
            if self.variant.order is Order.DUE and self.chance.randrange(2):
                given["due_time"] = self.server.now() + self.chance.randint(-20, 60)
        elif kind in {"pop", "pop_many"}:
            given = {"n": self.chance.randint(1, 4)} if kind == "pop_many" else {}
        else:
            id_, is_stale = self.chance.choice(sorted(known)), not self.chance.randrange(4)
            given = {"id": id_, "attempts": known[id_] + is_stale}
            given |= {"error": "broken"} if kind == "fail" else {}
        rows = yield from self.call(session, kind, **given)
        did = self.log(kind, given, rows)
        assert not did.finished or known[given["id"]] == given["attempts"], "another's claim"
        log.pushed |= did.pushed
        log.popped += did.popped
        log.finished += did.finished

    def check_batch(self, rows: list[Row]) -> None:
        ids = [row["id"] for row in rows]
        assert len(set(ids)) == len(ids)
        if self.variant.finishes and self.variant.design.name != "ring":
            ids = [(row["pushed_at"], row["id"]) for row in rows]
        if self.variant.order in {Order.LAX, Order.STRICT, Order.LIFO}:
            assert ids == sorted(ids, reverse=self.variant.order is Order.LIFO), "a batch's order"

    def repair(self) -> Counter[str]:
        return repair(self.made, self.server, self.call_alone)

    def drain_and_check(self, *, relays: bool = True) -> None:
        """Pop everything that is left; each message must then have come once, and be counted."""
        assert not self.server.locks
        assert not self.server.open
        assert not self.server.application_locks
        self.server.clock += 1000
        if self.variant.design.name == "ring" and relays:
            self.call_alone("relay", new_size=9 + len(self.pushed))
        calls = 0
        while rows := self.call_alone("pop_many", n=3) or self._pop_drawn():
            for row in rows:
                self.record_pop(row)
            calls += 1
            assert calls < 1000
        assert sorted(self.popped) == sorted(self.pushed), "lost, or popped without a push"
        if self.variant.order is Order.SESSIONS:
            by_session = self._sessions.__getitem__
            assert sorted(self.popped, key=by_session) == sorted(self.pushed, key=by_session)
        tables = self.server.tables
        if "orders_archive" in tables and self.variant.options.get("archive_at_pop") == "on":
            archived = {row["id"]: row["payload"] for row in tables["orders_archive"].values()}
            assert archived == self.pushed
        self._check_states()

    def _check_states(self) -> None:
        """What is left in the tables is what was not finished, in its state."""
        tables = self.server.tables
        if self.variant.finishes:
            table, state = CLAIMED[self.variant.design.name]
            states = {row["id"]: state(row) for row in tables[table].values()}
            expected = dict.fromkeys(self.claims, "claimed") | dict.fromkeys(self.failed, "error")
            if self.variant.design.name in {"status", "split"}:
                expected |= dict.fromkeys(self.done, "done")
            assert states == expected
        elif self.variant.design.name != "ring":
            assert not tables["orders"]
        if self.variant.options.get("conversation") == "each":
            # Later pushes end the rest: each has its answer.
            assert len(tables[broker.ENDPOINTS]) == len(tables["orders_initiator"])
        if self.variant.design.name == "split":
            assert tables["orders_meta"].keys() == tables["orders_data"].keys()

    def _pop_drawn(self) -> list[Row]:
        """Of a ring: a call that found nothing may have parked what it drew."""
        numbers = self.server.sequences
        while numbers.get("orders_pop_seq", 0) < numbers.get("orders_push_seq", 0):
            if rows := self.call_alone("pop"):
                return rows
        return []

    def log(self, name: str, given: dict[str, Any], rows: list[Row]) -> "Log":
        """What a call did."""
        log = Log()
        if name.startswith("push"):
            payloads = json.loads(given.get("payloads") or json.dumps([given["payload"]]))
            ids = zip(rows, payloads, strict=True)
            log.pushed = {row["id"]: payload for row, payload in ids if row["id"] is not None}
        elif name.startswith("pop"):
            self.check_batch(rows)
            log.popped = rows
        elif rows[0]["acted"]:
            log.finished = [(given["id"], name)]
        return log

    def record_alone(self, name: str, **given: Any) -> list[Row]:
        """A call as a transaction, with no other session between its statements."""
        rows = self.call_alone(name, **given)
        self.record(self.log(name, given, rows))
        return rows


@dataclass
class Log:
    """What a transaction did, if it commits."""

    session: int = 50
    pushed: dict[Any, str] = field(default_factory=dict)
    popped: list[Row] = field(default_factory=list)
    finished: list[tuple[Any, str]] = field(default_factory=list)
