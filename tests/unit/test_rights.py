"""What a connection may do, what its login could do, and what is told of both."""

from contextlib import closing
from dataclasses import fields

import pytest

from console.config import CommandLineValues, load
from console.engines import Database
from console.errors import ConnectionFailedError, RefusedError
from console.rights import ConnectionRights, Login, Rights

NOTHING = Login(*[False] * len(fields(Login)))
WRITER = Login(*[field.name == "writes" for field in fields(Login)])
NOWHERE = "postgresql+psycopg://u@127.0.0.1:1/d"


def opened(rights: str) -> Database:
    profile = load({"HOME": "/nowhere"}).selected_profile(
        CommandLineValues(url=NOWHERE, rights=rights), url_rights=Rights.ADMIN
    )
    assert profile is not None
    return profile.open()


@pytest.mark.parametrize("field", [field.name for field in fields(Login)])
def test_each_thing_that_a_login_can_do_is_told(field: str) -> None:
    login = Login(*[one.name == field for one in fields(Login)])
    assert len(login.can) == 1
    assert ConnectionRights(Rights.READ_ONLY, login).enforced is False


@pytest.mark.parametrize(
    ("rights", "login", "transactions", "words", "enforced"),
    [
        (Rights.READ_ONLY, None, True, "read-only", None),
        (Rights.READ_ONLY, NOTHING, True, "read-only", True),
        (Rights.READ_ONLY, WRITER, True, "read-only by this session only", False),
        (Rights.READ_ONLY, NOTHING, False, "read-only", True),
        (Rights.READ_ONLY, WRITER, False, "read-only, not enforced by the server", False),
        (Rights.OPERATOR, None, True, "operator", None),
        (Rights.OPERATOR, WRITER, True, "operator", None),
        (Rights.ADMIN, NOTHING, True, "admin, but the login can only read", None),
    ],
)
def test_who_enforces_the_rights(
    rights: Rights, login: Login | None, transactions: bool, words: str, enforced: bool | None
) -> None:
    standing = ConnectionRights(rights, login, transactions=transactions)
    assert (standing.words, standing.enforced) == (words, enforced)
    can = None if login is None else list(login.can)
    assert standing.as_json("c") == {
        "name": "c",
        "rights": rights.word,
        "enforced": enforced,
        "can": can,
    }


@pytest.mark.parametrize("way", ["transaction", "session", "autocommit"])
def test_a_read_only_connection_is_opened_for_nothing_but_looking(way: str) -> None:
    """A read-only transaction would let VACUUM's kin, NOTIFY and pg_terminate_backend through."""
    with closing(opened("read-only")) as database:
        work = getattr(database, way)
        with pytest.raises(RefusedError, match="end a session"), work("end a session"):
            pass
        with pytest.raises(ConnectionFailedError), work("look", read_only=True):
            pass
    with closing(opened("operator")) as database:
        work = getattr(database, way)
        with pytest.raises(ConnectionFailedError), work("end a session"):
            pass
