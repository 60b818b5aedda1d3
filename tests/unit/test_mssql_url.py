"""From a URL to an ODBC connection string and a label: nothing is lost, no secret is shown."""

import traceback
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from sqlalchemy import URL, make_url

from console.engines import Database, Timeouts
from console.engines.mssql import PRODUCT, odbc
from console.engines.mssql.odbc import Driver, connection_string, label, read, target
from console.engines.odbc_string import Attribute
from console.errors import ConnectionFailedError, UsageError
from tests.unit.mssql_tools import SECRET, OperationalError, open_mssql, stand_in_for_pyodbc

MICROSOFT = Driver("ODBC Driver 18 for SQL Server")
FREETDS = Driver("FreeTDS")
SERVER = f"mssql+pyodbc://sa:{SECRET}@db.example:1434/orders"


def keywords(url: str | URL, driver: Driver = MICROSOFT, **more: Any) -> dict[str, str]:
    """The connection string for a URL, as a driver reads it."""
    odbc_target = target(make_url(url), **more)
    text = connection_string(odbc_target, driver, "dbq-console")
    return values_of(read(text))


def values_of(attributes: Iterable[Attribute]) -> dict[str, str]:
    """Keyword -> value."""
    return {attribute.keyword: attribute.value for attribute in attributes}


def through_odbc_connect(text: str) -> URL:
    return URL.create("mssql+pyodbc", query={"odbc_connect": text})


def test_a_url_with_a_server_becomes_a_connection_string() -> None:
    assert keywords(SERVER) == {
        "DRIVER": "ODBC Driver 18 for SQL Server",
        "SERVER": "db.example,1434",
        "DATABASE": "orders",
        "UID": "sa",
        "PWD": SECRET,
        "APP": "dbq-console",
        "ConnectRetryCount": "0",
    }


def test_freetds_gets_its_own_keywords() -> None:
    found = keywords(SERVER, FREETDS)
    assert (found["TDS_Version"], found["ClientCharset"]) == ("7.4", "UTF-8")
    assert "ConnectRetryCount" not in found


def test_query_parameters_of_a_url_are_passed_on() -> None:
    given = {
        "Authentication": "ActiveDirectoryServicePrincipal",
        "MultiSubnetFailover": "Yes",
        "ApplicationIntent": "ReadOnly",
        "Encrypt": "strict",
        "TrustServerCertificate": "no",
        "HostNameInCertificate": "*.db.example",
        "ServerSPN": "MSSQLSvc/db.example:1434",
        "ConnectRetryCount": "3",
        "APP": "mine",
    }
    found = keywords(make_url(SERVER).update_query_dict(given))
    assert given.items() <= found.items()


def test_a_url_without_a_user_means_windows_authentication() -> None:
    found = keywords("mssql+pyodbc://db.example/orders")
    assert found["Trusted_Connection"] == "Yes"
    assert "UID" not in found
    entra = keywords("mssql+pyodbc://db.example/orders?Authentication=ActiveDirectoryMsi")
    assert "Trusted_Connection" not in entra


def test_a_url_without_a_host_means_localhost() -> None:
    assert keywords("mssql+pyodbc:///orders")["SERVER"] == "localhost"


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("host=h&port=1435&database=d&user=u", "h,1435 d u"),
        ("SERVER=tcp:h,1435&DATABASE=d&UID=u", "tcp:h,1435 d u"),
        (r"Server=h\one&database=d&username=u", r"h\one d u"),
    ],
)
def test_server_database_and_user_may_be_in_the_query(query: str, expected: str) -> None:
    found = {k.upper(): v for k, v in keywords(f"mssql+pyodbc:///?{query}").items()}
    assert " ".join(found[k] for k in ("SERVER", "DATABASE", "UID")) == expected


def test_an_odbc_connect_is_kept_unchanged_and_completed() -> None:
    text = f"Server=tcp:h,1433;Database=d;Uid=u;Pwd={{a;b}}}}{SECRET}}};Encrypt=yes"
    assert keywords(through_odbc_connect(text)) == {
        "DRIVER": "ODBC Driver 18 for SQL Server",
        "Server": "tcp:h,1433",
        "Database": "d",
        "Uid": "u",
        "Pwd": f"a;b}}{SECRET}",
        "Encrypt": "yes",
        "APP": "dbq-console",
        "ConnectRetryCount": "0",
    }
    # Without a user the driver decides; SQLAlchemy does the same.
    assert "Trusted_Connection" not in keywords(through_odbc_connect("SERVER=h"))


def test_the_rest_of_the_url_completes_an_odbc_connect() -> None:
    url = make_url(SERVER).update_query_dict({"odbc_connect": "Server=h;Encrypt=no", "APP": "mine"})
    found = keywords(url)
    assert (found["Server"], found["UID"], found["PWD"]) == ("h", "sa", SECRET)
    assert (found["DATABASE"], found["APP"]) == ("orders", "mine")
    assert "SERVER" not in found


@pytest.mark.parametrize(
    "url",
    [
        "mssql+pyodbc://?dsn=Orders",
        f"mssql+pyodbc://u:{SECRET}@Orders",
        through_odbc_connect("DSN=Orders"),
    ],
)
def test_a_data_source_has_its_own_driver(url: str | URL) -> None:
    found = {k.upper(): v for k, v in keywords(url, data_sources=["orders"]).items()}
    assert found["DSN"] == "Orders"
    assert not {"DRIVER", "SERVER", "TRUSTED_CONNECTION"} & set(found)


@pytest.mark.parametrize("more", [":1433", "/db", "?driver=FreeTDS", ""])
def test_a_host_that_is_no_data_source_is_a_server(more: str) -> None:
    sources = ["Orders"] if more else ["another"]
    found = keywords(f"mssql+pyodbc://u@Orders{more}", data_sources=sources)
    assert found["SERVER"].startswith("Orders")
    assert "DSN" not in found


def test_a_driver_named_in_the_url_is_used() -> None:
    assert target(make_url(f"{SERVER}?driver=ODBC+Driver+17+for+SQL+Server")).driver == (
        "ODBC Driver 17 for SQL Server"
    )
    assert target(through_odbc_connect("Driver={FreeTDS};Server=h")).driver == "FreeTDS"


def test_options_of_sqlalchemys_own_dialect_are_not_passed_on() -> None:
    found = keywords(f"{SERVER}?autocommit=true&ansi=false&unicode_results=true")
    assert not {"autocommit", "ansi", "unicode_results"} & set(found)


KEYWORDS = st.from_regex(r"X[A-Za-z_ ]{0,10}[A-Za-z]", fullmatch=True)
VALUES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)


@given(st.dictionaries(KEYWORDS, VALUES, max_size=5), st.sampled_from([MICROSOFT, FREETDS]))
def test_values_with_any_characters_arrive(values: dict[str, str], driver: Driver) -> None:
    assume("};" not in "".join(values.values()))
    odbc_target = odbc.OdbcTarget([Attribute(*part) for part in (("SERVER", "h"), *values.items())])
    text = connection_string(odbc_target, driver, "dbq-console")
    found = values_of(read(text)) if driver is MICROSOFT else freetds_reads(text)
    assert values_of(odbc_target.attributes).items() <= found.items()


def freetds_reads(text: str) -> dict[str, str]:
    """As its odbc_parse_connect_string does: braces end at `};` or at the end, unescaped."""
    found = {}
    while text:
        keyword, _, rest = text.partition("=")
        if rest.startswith("{"):
            value, mark, text = rest[1:].partition("};")
            value = value if mark else value.removesuffix("}")
        else:
            value, _, text = rest.partition(";")
        found[keyword] = value
    return found


@pytest.mark.parametrize(
    "text",
    [
        f"SERVER=h;PWD={{{SECRET}",
        f"SERVER=h;PWD={{a}}{SECRET}",
        f"SERVER=h;PWD={SECRET};{SECRET}",
        f"SERVER=h;{SECRET}",
        f"{SECRET}=;;;={SECRET}",
        f"DRIVER={{ODBC Driver 18 for SQL Server;PWD={SECRET}",
        f"SERVER=h;PWD={SECRET}\0",
        f"SERVER=h;PWD={SECRET}\udc80",
    ],
)
def test_a_malformed_connection_string_is_refused_without_its_secret(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        keywords(through_odbc_connect(text))
    assert SECRET not in str(refused.value)
    assert "mssql+pyodbc://" in str(refused.value)


def test_a_repeated_keyword_is_refused_without_its_secret() -> None:
    with pytest.raises(UsageError, match="'PWD' more than once") as refused:
        keywords(f"mssql+pyodbc://h/d?PWD={SECRET}&PWD={SECRET}")
    assert SECRET not in str(refused.value)
    with pytest.raises(UsageError) as refused:
        keywords(f"mssql+pyodbc://h/d?a%3B{SECRET}=1")
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        (SERVER, "db.example:1434/orders"),
        (f"mssql+pyodbc://u:{SECRET}@db.example/orders", "db.example/orders"),
        (f"mssql+pyodbc://u:{SECRET}@db.example", "db.example/"),
        ("mssql+pyodbc:///orders", "localhost/orders"),
        (f"mssql+pyodbc://?DSN=Orders&PWD={SECRET}", "Orders/"),
        (through_odbc_connect(f"SERVER=tcp:h,1433;DATABASE=d;UID=u;PWD={SECRET}"), "h:1433/d"),
        (through_odbc_connect(f"Server={{h}};PWD={{{SECRET};}};Database={{a b}}"), "h/a b"),
        (through_odbc_connect(rf"Addr=h\one, 1433;PWD={SECRET}"), r"h\one:1433/"),
        (through_odbc_connect(f"DSN=Orders;PWD={SECRET};DATABASE=d"), "Orders/d"),
        # A semicolon is missing.
        (through_odbc_connect(f"SERVER=h PWD={SECRET};DATABASE=d"), "?/d"),
        (through_odbc_connect(f"SERVER=h;DATABASE=d PWD={SECRET}"), "h/?"),
        (through_odbc_connect(f"DSN=Orders PWD={SECRET}"), "?/"),
    ],
)
def test_a_label_has_neither_user_nor_password(url: str | URL, expected: str) -> None:
    assert PRODUCT.label(make_url(url)) == expected


@given(
    st.lists(
        st.sampled_from(
            ["SERVER=h", "Driver={FreeTDS}", "UID=u", "DATABASE=d", ";", "{", "}", "=", " ", "\\"]
        )
    ),
    st.integers(0, 10),
    st.sampled_from([f"PWD={SECRET}", f"PWD={{{SECRET}}}", f";pwd={SECRET};", f"PWD={{{SECRET}"]),
)
def test_no_label_and_no_error_shows_a_password(
    parts: list[str], where: int, password: str
) -> None:
    url = through_odbc_connect(";".join([*parts[:where], password, *parts[where:]]))
    try:
        shown = label(url)
    except UsageError as error:
        shown = str(error)
    assert SECRET not in shown


def test_the_engine_of_sqlalchemy_has_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    odbc = stand_in_for_pyodbc(monkeypatch)
    database = open_mssql(f"{SERVER}?Encrypt=strict")
    assert SECRET not in repr(database._engine) + str(database._engine.url)
    with database.autocommit("try it"):
        pass
    ((text, arguments),) = odbc.opened
    assert f"PWD={SECRET}" in text
    assert arguments == {"autocommit": True, "timeout": 7}
    database.close()


TOKEN = "eyJ0eXAiOiJKV1QiLCJhbGciOiJSUzI1NiJ9.e30."
BY_TOKEN = "mssql+pyodbc://anna@db.example/orders?Authentication=AccessToken"


def open_by_token(url: str, tokens: list[str]) -> Database:
    """A database whose password is the next of these texts, whenever it is needed."""
    without = make_url(url)
    return Database(
        PRODUCT,
        without,
        timeouts=Timeouts(connect_seconds=7),
        application_name="dbq-console",
        label="orders",
        complete=lambda: without.set(password=tokens.pop(0)),
    )


@pytest.mark.parametrize(
    "url",
    [
        BY_TOKEN,
        "mssql+pyodbc://db.example/orders?authentication=accesstoken",
        "mssql+pyodbc:///?odbc_connect=SERVER%3Ddb.example;DATABASE%3Dorders;UID%3Danna;"
        "Authentication%3DAccessToken",
    ],
)
def test_an_access_token_goes_to_the_driver_as_its_attribute(
    monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    """As Microsoft's manual has it: its length in bytes and UTF-16, and none of the keywords that
    the driver refuses beside it."""
    odbc = stand_in_for_pyodbc(monkeypatch)
    database = open_by_token(url, [TOKEN] * 2)
    with database.autocommit("try it"):
        pass
    database.close()
    ((text, arguments),) = odbc.opened
    assert values_of(read(text)) == {
        "DRIVER": "ODBC Driver 18 for SQL Server",
        "SERVER": "db.example",
        "DATABASE": "orders",
        "APP": "dbq-console",
        "ConnectRetryCount": "0",
    }
    ((attribute, given),) = arguments.pop("attrs_before").items()
    assert arguments == {"autocommit": True, "timeout": 7}
    assert attribute == 1256
    assert int.from_bytes(given[:4], "little") == len(given) - 4
    assert given[4:].decode("utf-16-le") == TOKEN


def test_each_connection_gets_a_token_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one before may have expired."""
    odbc = stand_in_for_pyodbc(monkeypatch)
    database = open_by_token(BY_TOKEN, [TOKEN, f"{TOKEN}1", f"{TOKEN}2"])
    with database.autocommit("try it"), database.autocommit("try it twice"):
        pass
    database.close()
    given = [arguments["attrs_before"][1256][4:] for _, arguments in odbc.opened]
    assert [one.decode("utf-16-le") for one in given] == [f"{TOKEN}1", f"{TOKEN}2"]


@pytest.mark.parametrize(
    ("token", "driver", "why"),
    [
        ("", "", "The connection has no password: it would be the token."),
        ("brief", "", "is too short for one"),
        (f"token: {TOKEN}", "", "or has a blank in it"),
        (TOKEN, "&driver=FreeTDS", "only Microsoft's driver does"),
    ],
)
def test_what_is_no_access_token_is_refused_before_the_driver_sees_it(
    monkeypatch: pytest.MonkeyPatch, token: str, driver: str, why: str
) -> None:
    """The driver crashes on some (microsoft/mssql-python#278)."""
    odbc = stand_in_for_pyodbc(monkeypatch)
    odbc.installed.append("FreeTDS")
    database = open_by_token(BY_TOKEN + driver, [token] * 2)
    with pytest.raises(ConnectionFailedError) as raised, database.autocommit("try it"):
        pass
    database.close()
    assert raised.value.what == "There is no access token for db.example/orders."
    assert why in raised.value.why
    assert ("get-access-token" in raised.value.next_step) is (driver == "")
    assert token == "" or token not in str(raised.value)
    assert odbc.opened == []


def test_a_refused_token_is_in_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    odbc = stand_in_for_pyodbc(monkeypatch)
    odbc.refuse = OperationalError("28000", f"[28000] Login failed: {TOKEN} (18456)")
    database = open_by_token(BY_TOKEN, [TOKEN] * 2)
    with pytest.raises(ConnectionFailedError) as raised, database.autocommit("try it"):
        pass
    database.close()
    assert TOKEN not in "".join(traceback.format_exception(raised.value))


def test_the_driver_of_a_data_source_is_read_from_the_machines_configuration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    odbc = stand_in_for_pyodbc(monkeypatch)
    odbc.installed = []
    odbc.sources = {"Orders": "FreeTDS"}
    database = open_mssql("mssql+pyodbc://u:p@orders")
    with database.autocommit("try it"):
        pass
    assert values_of(read(odbc.opened[0][0])) == {
        "DSN": "orders",
        "UID": "u",
        "PWD": "p",
        "APP": "dbq-console",
        "TDS_Version": "7.4",
        "ClientCharset": "UTF-8",
    }
    database.close()
