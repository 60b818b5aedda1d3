"""Plans of the statements inside a queue's functions, by PostgreSQL's auto_explain."""

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, Self

import psycopg
from psycopg.sql import SQL, Composed, Identifier

from console.catalog import Queue
from console.engines import Database, open_database
from tests.servers import TIMEOUTS, connect

Node = dict[str, Any]

_SETTINGS = (
    "LOAD 'auto_explain'",
    "SET auto_explain.log_min_duration = 0",
    "SET auto_explain.log_nested_statements = on",
    "SET auto_explain.log_analyze = on",
    "SET auto_explain.log_timing = off",
    "SET auto_explain.log_buffers = on",
    "SET auto_explain.log_format = json",
    "SET auto_explain.log_level = notice",
)
_CALL = "/* the call itself */"


@dataclass(frozen=True)
class Statement:
    """One statement that a function ran, with its plan."""

    text: str
    root: Node

    def nodes(self) -> Iterator[Node]:
        left = [self.root]
        while left:
            node = left.pop()
            yield node
            left += node.get("Plans", [])

    @property
    def buffers(self) -> int:
        """Pages read, from the cache or not, including those dirtied and written."""
        return int(self.root["Shared Hit Blocks"] + self.root["Shared Read Blocks"])

    @property
    def calls(self) -> bool:
        """Whether it only calls a function whose own statements are recorded too."""
        return any(node["Node Type"] == "Function Scan" for node in self.nodes()) and not any(
            "Relation Name" in node for node in self.nodes()
        )

    def sequential(self) -> set[str]:
        """The tables that it scans completely."""
        return {node["Relation Name"] for node in self.nodes() if node["Node Type"] == "Seq Scan"}

    def selected_again(self) -> list[Node]:
        """Selections of rows to lock that ran more than once: such a batch takes more than n."""
        loops = [n for n in self.nodes() if n["Node Type"] == "LockRows"]
        return [node for node in loops if node["Actual Loops"] > 1]


@dataclass(frozen=True)
class Call:
    """One call of a queue's function: its rows and the statements inside it."""

    rows: list[tuple[Any, ...]]
    statements: list[Statement]

    @property
    def buffers(self) -> int:
        return sum(statement.buffers for statement in self.statements if not statement.calls)


class Recorder:
    """Records the plans of everything that a connection runs from now on."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._recorded: list[Statement] = []
        connection.add_notice_handler(self._notice)
        for setting in _SETTINGS:
            connection.execute(setting)

    def take(self) -> list[Statement]:
        """What was recorded since the last call."""
        taken, self._recorded = self._recorded, []
        return taken

    def _notice(self, notice: psycopg.errors.Diagnostic) -> None:
        _, found, plan = (notice.message_primary or "").partition("plan:\n")
        if found:
            parsed = json.loads(plan)
            self._recorded.append(Statement(parsed["Query Text"], parsed["Plan"]))


@contextmanager
def recorded(url: str) -> Iterator[tuple[Database, Recorder]]:
    """A console's connection, and the plans of everything sent through it."""
    with closing(open_database(url, timeouts=TIMEOUTS)) as database:
        with database.autocommit("record") as connection:
            driver = connection.connection.driver_connection
            assert isinstance(driver, psycopg.Connection)
            recorder = Recorder(driver)  # the pool has this one connection
        yield database, recorder


class Session:
    """A session that records the plans of every call. Each call is a transaction."""

    def __init__(self, url: str, queue: Queue) -> None:
        self._connection: psycopg.Connection[Any] = connect(url)
        self._queue = queue
        self._recorder = Recorder(self._connection)

    def call(self, function: str, arguments: str = "", *values: object) -> Call:
        """Call `<queue>_<function>` with these arguments, `%s` for each of the values."""
        self._recorder.take()
        cursor = self._connection.execute(self._sql(function, arguments), values)
        inside = [s for s in self._recorder.take() if _CALL not in s.text]
        return Call(cursor.fetchall(), inside)

    def _sql(self, function: str, arguments: str) -> Composed:
        name = Identifier(self._queue.schema, f"{self._queue.name}_{function}")
        call = SQL(_CALL + " SELECT * FROM {}(")
        return call.format(name) + SQL(arguments) + SQL(")")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()
