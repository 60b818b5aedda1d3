"""URLs and their secrets."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sqlalchemy import make_url

from console.config.urls import ConnectionUrl
from console.engines import label_of, odbc_string
from console.engines.odbc_string import Attribute
from console.errors import ConnectionFailedError, UsageError

SECRET = "hunter2"
EDGE = {"USER": "u", "PW": "p@/:?#}{%40;x", "HOST": "db", "PORT": "5433", "DB": "orders"}


@pytest.mark.parametrize(
    ("text", "shown", "label"),
    [
        (f"postgresql+psycopg://u:{SECRET}@h:1/d", "postgresql+psycopg://u:***@h:1/d", "h:1/d"),
        (f"postgresql://u@h/d?password={SECRET}", "postgresql://u@h/d?password=***", "h/d"),
        (
            f"postgresql://u@h/d?sslpassword={SECRET}&sslmode=require",
            "postgresql://u@h/d?sslmode=require&sslpassword=***",
            "h/d",
        ),
        (f"postgresql:///d?passfile=/{SECRET}", f"postgresql:///d?passfile=%2F{SECRET}", ""),
        (
            "postgresql://${env:USER}:${env:PW}@${env:HOST}:${env:PORT}/${env:DB}?x=${env:X}",
            "postgresql://${env:USER}:***@${env:HOST}:${env:PORT}/${env:DB}?x=${env:X}",
            "",
        ),
        ("postgresql://u@[::1]:5/d", "postgresql://u@[::1]:5/d", ""),
        ("${env:WHOLE}", "${env:WHOLE}", ""),
    ],
)
def test_a_shown_url_has_masked_secrets(text: str, shown: str, label: str) -> None:
    url = ConnectionUrl.read(text)
    assert url.shown == shown
    assert repr(url) == f"ConnectionUrl({shown})"
    if label:
        public = url.public
        assert SECRET not in public.render_as_string(hide_password=False)
        assert label_of(public) == label


@given(secret=st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1))
@example("}{;=@:/?#%40${env:X}***")
def test_any_secret_reaches_the_driver_only(secret: str) -> None:
    marked = f"<{secret}\u2603>"
    for text in (
        "postgresql://u:${env:PW}@h/d",
        "postgresql://u@h/d?password=${env:PW}",
        "postgresql://u@h/d?sslpassword=a${env:PW}",
    ):
        url = ConnectionUrl.read(text)
        assert not url.contains_secret
        complete_url = url.complete({"PW": marked})
        assert marked in {complete_url.password, str(complete_url.query.get("sslpassword"))[1:]}
        for shown in (url.shown, repr(url), url.public.render_as_string(hide_password=False)):
            assert "\u2603" not in shown
    separate = ConnectionUrl.read("postgresql://u@h/d").complete({}, marked)
    assert separate.password == marked


def test_every_part_of_a_url_may_have_a_variable() -> None:
    text = (
        "postgresql://${env:USER}:${env:PW}@${env:HOST}:${env:PORT}/${env:DB}?a${env:DB}=${env:DB}b"
    )
    url = ConnectionUrl.read(text).complete(EDGE)
    assert (url.username, url.password, url.host, url.port) == ("u", EDGE["PW"], "db", 5433)
    assert (url.database, dict(url.query)) == ("orders", {"aorders": "ordersb"})
    public = ConnectionUrl.read(text).public
    assert (public.host, public.port, public.password) == ("${env:HOST}", None, None)


def test_the_whole_url_may_be_one_variable() -> None:
    url = ConnectionUrl.read("${env:WHOLE}")
    assert not url.contains_secret
    known = url.known({"WHOLE": f"postgresql://u:{SECRET}@h/d"})
    assert known.shown == "postgresql://u:***@h/d"
    assert known.complete({}).password == SECRET
    for wrong in ("", "nonsense", f"postgresql://u:{SECRET}@x@h/d"):
        with pytest.raises(UsageError) as refused:
            url.known({"WHOLE": wrong})
        assert SECRET not in str(refused.value)


def test_an_unset_variable_is_reported_by_name_when_used() -> None:
    url = ConnectionUrl.read("postgresql://u:${env:NOT_THERE}@h/d")
    with pytest.raises(ConnectionFailedError, match="NOT_THERE is not set"):
        url.complete({})
    assert url.complete({"NOT_THERE": ""}).password == ""
    with pytest.raises(ConnectionFailedError, match="NOT_THERE is not set"):
        ConnectionUrl.read("${env:NOT_THERE}").known({})


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("postgresql://u:${env:}@h/d", "letters, digits"),
        ("postgresql://u:${env:A-B}@h/d", "letters, digits"),
        ("postgresql+${env:DRIVER}://h/d", "its engine"),
        (f"postgresql://u:{SECRET}@{SECRET}@h/d", "%40"),
        (f"postgresql://u/v:{SECRET}@h/d", "%40"),
        (f"postgresql://h/d?odbc_connect=PWD=%7B{SECRET}", "KEYWORD=value"),
        (f"nonsense {SECRET}", "cannot be read"),
    ],
)
def test_an_error_about_an_invalid_url_does_not_repeat_its_secret(
    text: str, complaint: str
) -> None:
    with pytest.raises(UsageError) as refused:
        ConnectionUrl.read(text)
    assert complaint in str(refused.value)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("bad", ["a\0b", "a\udcffb"])
def test_passwords_that_no_driver_accepts_are_refused_before_connecting(bad: str) -> None:
    with pytest.raises(UsageError, match="cannot be used") as refused:
        ConnectionUrl.read("postgresql://u:${env:PW}@h/d").complete({"PW": f"{SECRET}{bad}"})
    assert SECRET not in str(refused.value)
    assert refused.value.__context__ is None
    with pytest.raises(UsageError, match="cannot be used"):
        ConnectionUrl.read("postgresql://u@h/d").complete({}, bad)


def test_a_port_variable_that_is_not_a_number_is_an_error() -> None:
    url = ConnectionUrl.read("postgresql://u@h:${env:PORT}/d")
    with pytest.raises(ConnectionFailedError, match="port is not a number"):
        url.complete({"PORT": "5432x"})


@pytest.mark.parametrize(
    ("text", "has_secret"),
    [
        (f"postgresql://u:{SECRET}@h/d", True),
        ("postgresql://u:${env:X}@h/d", False),
        ("postgresql://u:a${env:X}@h/d", False),
        ("postgresql://u@h/d", False),
        ("postgresql://u:@h/d", False),
        (f"postgresql://u@h/d?password={SECRET}", True),
        (f"postgresql://u@h/d?sslpassword={SECRET}", True),
        ("postgresql://u@h/d?passfile=/x&service=y&require_auth=password", False),
        (f"postgresql:///?odbc_connect=SERVER=h;pwd={SECRET}", True),
        (f"postgresql:///?odbc_connect=SERVER=h;AccessToken=%7B{SECRET}%7D", True),
        ("postgresql:///?odbc_connect=SERVER=h;PWD=${env:X};UID=u", False),
    ],
)
def test_secrets_in_clear_text_are_detected(text: str, has_secret: bool) -> None:
    assert ConnectionUrl.read(text).contains_secret is has_secret


ODBC = "postgresql:///?odbc_connect=DRIVER%3D%7BODBC Driver 18%7D%3BSERVER%3Dh%2C1433%3BUID%3Du"
"""The dialect is irrelevant here."""


def test_secrets_in_odbc_connect_are_masked() -> None:
    url = ConnectionUrl.read(f"{ODBC}%3BPwd%3D{SECRET}%3BEncrypt%3Dyes")
    assert "Pwd%3D***%3BEncrypt" in url.shown
    assert SECRET not in url.shown
    public = url.public.query["odbc_connect"]
    assert public == "DRIVER={ODBC Driver 18};SERVER=h,1433;UID=u;Encrypt=yes"
    complete_text = url.complete({}).query["odbc_connect"]
    assert (
        complete_text == f"DRIVER={{ODBC Driver 18}};SERVER=h,1433;UID=u;Pwd={SECRET};Encrypt=yes"
    )


@pytest.mark.parametrize("written", ["${env:PW}", "{${env:PW}}", "{a;${env:PW}}"])
def test_a_variable_in_odbc_connect_stays_one_value(written: str) -> None:
    value = "x};SERVER=evil"
    braced = written.replace("{", "%7B", written.startswith("{")).replace("}}", "}%7D")
    url = ConnectionUrl.read(f"{ODBC}%3BPWD%3D{braced}")
    assert not url.contains_secret
    attributes = odbc_string.parse(str(url.complete({"PW": value}).query["odbc_connect"]))
    before = "a;" if "a;" in written else ""
    assert attributes[-1] == Attribute("PWD", before + value, braced=True)
    assert [part.value for part in attributes if part.is_("server")] == ["h,1433"]


def test_a_separate_password_goes_into_odbc_connect() -> None:
    for existing in ("", "%3BPWD%3Dold"):
        complete_url = ConnectionUrl.read(ODBC + existing).complete({}, "a;b}c")
        assert str(complete_url.query["odbc_connect"]).endswith(";UID=u;PWD={a;b}}c}")
        assert complete_url.password is None


@pytest.mark.parametrize("text", ["PWD={x", "PWD=a;b", "PWD", "=x", "A=1;{}", "A={x}y;B=1"])
def test_a_malformed_connection_string_is_not_parsed(text: str) -> None:
    with pytest.raises(odbc_string.MalformedError):
        odbc_string.parse(text)


def test_a_connection_string_is_parsed() -> None:
    attributes = [
        *(Attribute("A", "1"), Attribute("B", "x;}y", braced=True)),
        *(Attribute("C", ""), Attribute("D", "a b")),
    ]
    assert odbc_string.parse(" A = 1 ; B={x;}}y};C=;D=a b;") == attributes
    assert odbc_string.joined(attributes) == "A=1;B={x;}}y};C=;D=a b"


def test_a_url_without_variables_is_unchanged() -> None:
    for text in (
        "postgresql+psycopg://u:p%40q@h:5432/d?options=-c%20a%3Db&application_name=x",
        "postgresql:///d?host=/run&host=/tmp",
        "postgresql://u@[::1]:5432/d",
        "postgresql://",
    ):
        assert ConnectionUrl.read(text).complete({}) == make_url(text)
