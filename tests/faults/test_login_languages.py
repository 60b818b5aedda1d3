"""What to do after a refused login, whatever the language of the server's messages."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.cli.calls import Console
from tests.servers import connect
from tests.servers.versions import VersionServer, single

GERMAN = {"LC_ALL": "C.UTF-8", "LANGUAGE": "de"}
"""Debian's servers have translations, which need no installed locale but UTF-8."""


@pytest.fixture(scope="module")
def german() -> Iterator[VersionServer]:
    with single("15", GERMAN) as server:
        server.initialise()
        server.start(lc_messages="C.UTF-8", max_connections="5")
        with connect(server.url) as connection:
            connection.execute("CREATE ROLE guest LOGIN")
            connection.execute("CREATE DATABASE closed ALLOW_CONNECTIONS false")
            connection.execute("CREATE DATABASE hers")
            connection.execute("REVOKE CONNECT ON DATABASE hers FROM PUBLIC")
            with pytest.raises(Exception, match="existiert nicht"):
                connection.execute("SELECT FROM nothing")
        yield server


@pytest.mark.parametrize(
    ("login", "database", "hint"),
    [
        ("postgres", "nothing", "Check the database's name"),
        ("nobody_here", "postgres", "Check user and password"),
        ("guest", "hers", "Check the database's name"),
        ("postgres", "closed", "Check the database's name"),
    ],
)
def test_the_hint_is_that_of_the_refusal(
    german: VersionServer, login: str, database: str, hint: str
) -> None:
    Console(f"postgresql://{login}@127.0.0.1:{german.port}/{database}")("status").failed(
        3, hint, "SQLSTATE"
    )


def test_a_server_without_a_free_slot_says_so(german: VersionServer) -> None:
    guest = f"postgresql://guest@127.0.0.1:{german.port}/postgres"
    with ExitStack() as held:
        for _ in range(5):
            held.enter_context(connect(german.url))
        refused = Console(guest)("status")
    assert refused.status == 3
    assert "Close other sessions" in refused.err
