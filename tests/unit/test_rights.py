"""What a connection may do, what its login could do, and how both are reported."""

from contextlib import closing
from dataclasses import fields

import pytest

from console.command_line import CommandLineValues
from console.config import load
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
def test_each_permission_of_a_login_is_reported(field: str) -> None:
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
def test_the_words_say_whether_the_server_enforces_the_rights(
    rights: Rights, login: Login | None, transactions: bool, words: str, enforced: bool | None
) -> None:
    actual = ConnectionRights(rights, login, transactions=transactions)
    assert (actual.words, actual.enforced) == (words, enforced)
    can = None if login is None else list(login.can)
    assert actual.as_json("c") == {
        "name": "c",
        "rights": rights.word,
        "enforced": enforced,
        "can": can,
    }


@pytest.mark.parametrize("method", ["transaction", "session", "autocommit"])
def test_a_read_only_connection_refuses_all_work_but_reading(method: str) -> None:
    """A read-only transaction would let VACUUM's kin, NOTIFY and pg_terminate_backend through."""
    with closing(opened("read-only")) as database:
        work = getattr(database, method)
        with pytest.raises(RefusedError, match="end a session"), work("end a session"):
            pass
        with pytest.raises(ConnectionFailedError), work("look", read_only=True):
            pass
    with closing(opened("operator")) as database:
        work = getattr(database, method)
        with pytest.raises(ConnectionFailedError), work("end a session"):
            pass
