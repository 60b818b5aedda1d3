"""The floor under single messages: a push and a pop are at least two durable updates of a row.

The same client updates rows by their key, one a call. Half of what it reaches is what a queue of
single messages could reach at best; and beside pgbench with the same statement it tells how much
of a figure is the load generator's own doing.
"""

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import URL

from console import sql
from console.bench.contestant import Contestant, LeftRow
from console.bench.message import filler
from console.bench.names import PREFIX
from console.bench.queues import call_text, driver
from console.bench.schemas import schema_of_its_own
from console.catalog import FILLFACTOR
from console.engines import Database, Product
from console.errors import ConsoleError

NAME = "floor"
ROWS = 10_000
"""As many as a ring has slots."""
_TABLE = "rows"
_RATE = re.compile(r"^tps = ([0-9.]+) \(without initial connection time\)", re.MULTILINE)
_GRACE_SECONDS = 30.0


def contestant(product: Product) -> Contestant:
    """As one that takes part."""
    return Contestant(NAME, NAME, batch=1, driver=driver(product, "run_updates"), carries=False)


class Rows:
    """Where the floor gets its table."""

    def __init__(self, database: Database, token: str, producers: int, consumers: int) -> None:
        self._database = database
        self._token = token
        self._producers = producers
        self._clients = producers + consumers

    @contextmanager
    def scratch(self, contestant: Contestant, payload: int) -> Iterator["ScratchRows"]:
        """One table, for one round."""
        product = self._database.product
        schema = f"{PREFIX}{self._token}_{contestant.design}"
        values = {"schema": schema, "width": str(payload), "rows": str(ROWS)}
        scope = sql.Scope({**values, "fillfactor": FILLFACTOR})
        statements = sql.statements(product.name, "bench")
        with schema_of_its_own(self._database, schema):
            with self._database.transaction("make the floor's rows") as connection:
                sql.run_script(connection, statements["make_rows"], scope)
            rendered = sql.query(statements["update_row"], product.dialect, scope)
            call = call_text(rendered, contestant.driver)
            yield ScratchRows(schema, call, self._producers, self._clients)


@dataclass(frozen=True)
class ScratchRows:
    """The table of one round."""

    schema: str
    call: str
    producers: int
    clients: int

    @property
    def settings(self) -> dict[str, object]:
        """The one call, and whose rows are whose."""
        return {
            "calls": {"update_row": self.call},
            "producers": self.producers,
            "clients": self.clients,
            "rows": ROWS,
        }

    @property
    def tables(self) -> Sequence[str]:
        """The one table."""
        return [_TABLE]

    def left(self, filler: bytes) -> list[LeftRow]:  # noqa: ARG002
        """No messages."""
        return []

    def left_codes(self, filler: bytes) -> list[int]:  # noqa: ARG002
        """No messages."""
        return []


def pgbench_updates_per_second(
    program: Path, url: URL, rows: ScratchRows, payload: int, seconds: float
) -> float:
    """What pgbench reaches with the same statement, as many clients, the same rows."""
    statement = rows.call.replace("$1", ":message").replace("$2", ":slot")
    script = (
        "\\set turn :turn + 1\n"
        f"\\set slot (:client_id + :turn * {rows.clients}) % {ROWS}\n"
        f"{_without_comment(statement)};\n"
    )
    words = url.translate_connect_args(username="user", database="dbname")
    options = {"-h": words.get("host"), "-p": words.get("port"), "-U": words.get("user")}
    place = [part for name, value in options.items() if value for part in (name, str(value))]
    with tempfile.TemporaryDirectory(prefix="dbq-bench-") as folder:
        file = Path(folder) / "update.sql"
        file.write_text(script, encoding="utf-8")
        command = [str(program), "-n", "-M", "prepared", "-f", str(file), "-T", str(round(seconds))]
        command += ["-c", str(rows.clients), "-j", "2", "-D", "turn=0"]
        command += ["-D", f"message={'0' * 38}{filler(payload).decode()}", *place]
        password = {"PGPASSWORD": str(words["password"])} if words.get("password") else {}
        try:
            done = subprocess.run(
                [*command, str(words.get("dbname", ""))],
                env={**os.environ, **password, "PGOPTIONS": "-c synchronous_commit=on"},
                capture_output=True,
                text=True,
                check=False,
                timeout=seconds + _GRACE_SECONDS,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ConsoleError("pgbench could not be run.", why=str(error)) from error
    found = _RATE.search(done.stdout)
    if found is None:
        raise ConsoleError("pgbench gave no rate.", why=done.stderr.strip())
    return float(found[1])


def _without_comment(statement: str) -> str:
    """pgbench counts prepared statements by their text; the comment at the head would do no harm,
    but a colon in it would be taken for a variable."""
    return re.sub(r"/\*.*?\*/", "", statement).strip().rstrip(";")
