"""A private PostgreSQL server for the demo and the tests, without installation or privileges.

    with EmbeddedServer.start() as server:
        database = open_database(server.create_database("demo"))

It listens on 127.0.0.1 only, requires a password, is as durable as any server, and does not outlive
the process that started it. Needs the extra [demo].
"""

from console.features.demo.embedded.server import EmbeddedServer

__all__ = ["EmbeddedServer"]
