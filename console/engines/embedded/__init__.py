"""A real PostgreSQL server of one's own, for the demo and the tests: no installation, no rights.

    with EmbeddedServer.start() as server:
        database = open_database(server.create_database("demo"))

It listens on 127.0.0.1 only, asks for a password, writes as durably as any server, and does not
outlive the process that started it. Needs the extra [demo].
"""

from console.engines.embedded.server import EmbeddedServer

__all__ = ["EmbeddedServer"]
