"""A fleet: databases of the same queues, each behind a proxy of its own, which is its host."""

import itertools
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from psycopg.sql import SQL, Identifier, Literal
from sqlalchemy import make_url

from console.actions.install import install
from console.catalog import Queue, installed_queue
from console.designs import design
from console.engines import open_database
from tests.proxy import Proxy
from tests.servers import connect

NAME = "shops"
_PASSWORD = uuid4().hex
_DESIGNS = ("claim", "fifo", "ring", "status", "pending", "split", "heap", "stack", "naive")
_PATTERN = "pattern"


@dataclass(frozen=True)
class Fleet:
    """Its hosts in the order of the configuration."""

    proxies: Sequence[Proxy]
    urls: Sequence[str]
    """Past the proxies."""
    queues: Sequence[Queue]
    """Of each database."""
    environment: dict[str, str]
    """With which a console knows it, as the fleet NAME."""

    def title(self, place: int) -> str:
        """How the host stands under its group."""
        return f"127.0.0.1:{self.proxies[place].port}"

    @contextmanager
    def traffic(self) -> Iterator[None]:
        """A push every 5 s into each queue, all the while."""
        stop = threading.Event()

        def run() -> None:
            for place in itertools.cycle(range(len(self.urls))):
                if stop.wait(5.0 / len(self.urls)):
                    return
                self.push(place)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def push(self, place: int) -> None:
        """A message into each queue of a host; its rings lose one."""
        with connect(self.urls[place]) as connection:
            for one in self.queues:
                if one.design.name == "ring":
                    pop = SQL("SELECT FROM {}()").format(Identifier("public", f"{one.name}_pop"))
                    connection.execute(pop)
                push = SQL("SELECT {}({})").format(
                    Identifier("public", f"{one.name}_push"), Literal("x")
                )
                connection.execute(push)


@contextmanager
def fleet_on(servers: Sequence[str], folder: Path, hosts: int, queues: int) -> Iterator[Fleet]:
    """So many databases with so many queues, on these servers (their URLs) in turn."""
    made = [
        installed_queue(
            "public", f"q{number:02}", chosen, chosen.complete_options(options, "postgresql")
        )
        for number in range(queues)
        for chosen in [design(_DESIGNS[number % len(_DESIGNS)], "postgresql")]
        for options in [{"size": "50"} if chosen.name == "ring" else {}]
    ]
    with ExitStack() as opened:
        proxies, urls = [], []
        for number, server in enumerate(servers):
            own = [opened.enter_context(Proxy(server)) for _ in range(number, hosts, len(servers))]
            urls += _databases(server, made, [f"127.0.0.1:{one.port}" for one in own])
            proxies += own
        yield Fleet(proxies, urls, made, _configured(folder, proxies))


def _databases(server: str, queues: Sequence[Queue], names: Sequence[str]) -> list[str]:
    """Copies of one; a host's database is called as the host is."""
    at = make_url(server).set(drivername="postgresql+psycopg")
    with connect(server) as connection:
        role = SQL("CREATE ROLE {} SUPERUSER LOGIN PASSWORD {}")
        connection.execute(role.format(Identifier(NAME), Literal(_PASSWORD)))
        connection.execute(SQL("CREATE DATABASE {}").format(Identifier(_PATTERN)))
        pattern = open_database(at.set(database=_PATTERN).render_as_string(hide_password=False))
        for queue in queues:
            install(pattern, queue)
        pattern.close()
        for name in names:
            copy = SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy")
            connection.execute(copy.format(Identifier(name), Identifier(_PATTERN)))
    return [at.set(database=name).render_as_string(hide_password=False) for name in names]


def _configured(folder: Path, proxies: Sequence[Proxy]) -> dict[str, str]:
    file = folder / "config.toml"
    hosts = [f"127.0.0.1:{one.port}" for one in proxies]
    file.write_text(
        f'[fleets.{NAME}]\nurl = "postgresql+psycopg://{NAME}@{{host}}/{{host}}"\n'
        f'password = "${{env:FLEET_PASSWORD}}"\ninterval = "5s"\nhosts = {hosts}\n'
    )
    return {"DBQ_CONFIG": str(file), "FLEET_PASSWORD": _PASSWORD}
