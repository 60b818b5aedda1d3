"""URLs with their secrets apart."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sqlalchemy import make_url

from console.config import urls
from console.config.urls import ConnectionUrl
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
def test_what_is_shown(text: str, shown: str, label: str) -> None:
    url = ConnectionUrl.read(text)
    assert url.shown == shown
    assert repr(url) == f"ConnectionUrl({shown})"
    if label:
        public = url.public
        assert SECRET not in public.render_as_string(hide_password=False)
        assert f"{public.host}" in label


@given(secret=st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1))
@example("}{;=@:/?#%40${env:X}***")
def test_any_secret_reaches_the_driver_and_nobody_else(secret: str) -> None:
    marked = f"<{secret}\u2603>"
    for text in (
        "postgresql://u:${env:PW}@h/d",
        "postgresql://u@h/d?password=${env:PW}",
        "postgresql://u@h/d?sslpassword=a${env:PW}",
    ):
        url = ConnectionUrl.read(text)
        assert not url.contains_secret
        whole = url.complete({"PW": marked})
        assert marked in {whole.password, str(whole.query.get("sslpassword"))[1:]}
        for told in (url.shown, repr(url), url.public.render_as_string(hide_password=False)):
            assert "\u2603" not in told
    given_apart = ConnectionUrl.read("postgresql://u@h/d").complete({}, marked)
    assert given_apart.password == marked


def test_a_variable_may_stand_in_every_part() -> None:
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


def test_a_variable_that_is_not_set_is_named_when_it_is_needed() -> None:
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
def test_a_url_that_cannot_be_used_is_not_repeated(text: str, complaint: str) -> None:
    with pytest.raises(UsageError) as refused:
        ConnectionUrl.read(text)
    assert complaint in str(refused.value)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("bad", ["a\0b", "a\udcffb"])
def test_what_no_driver_takes_is_refused_before_it(bad: str) -> None:
    with pytest.raises(UsageError, match="cannot be used") as refused:
        ConnectionUrl.read("postgresql://u:${env:PW}@h/d").complete({"PW": f"{SECRET}{bad}"})
    assert SECRET not in str(refused.value)
    assert refused.value.__context__ is None
    with pytest.raises(UsageError, match="cannot be used"):
        ConnectionUrl.read("postgresql://u@h/d").complete({}, bad)


def test_a_port_that_is_no_number() -> None:
    url = ConnectionUrl.read("postgresql://u@h:${env:PORT}/d")
    with pytest.raises(ConnectionFailedError, match="port is not a number"):
        url.complete({"PORT": "5432x"})


@pytest.mark.parametrize(
    ("text", "tells"),
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
def test_whether_a_secret_stands_in_it_in_clear(text: str, tells: bool) -> None:
    assert ConnectionUrl.read(text).contains_secret is tells


ODBC = "postgresql:///?odbc_connect=DRIVER%3D%7BODBC Driver 18%7D%3BSERVER%3Dh%2C1433%3BUID%3Du"
"""The dialect plays no part in it."""


def test_odbc_connect_keeps_its_secrets_too() -> None:
    url = ConnectionUrl.read(f"{ODBC}%3BPwd%3D{SECRET}%3BEncrypt%3Dyes")
    assert "Pwd%3D***%3BEncrypt" in url.shown
    assert SECRET not in url.shown
    given = url.public.query["odbc_connect"]
    assert given == "DRIVER={ODBC Driver 18};SERVER=h,1433;UID=u;Encrypt=yes"
    whole = url.complete({}).query["odbc_connect"]
    assert whole == f"DRIVER={{ODBC Driver 18}};SERVER=h,1433;UID=u;Pwd={SECRET};Encrypt=yes"


@pytest.mark.parametrize("written", ["${env:PW}", "{${env:PW}}", "{a;${env:PW}}"])
def test_a_variable_in_odbc_connect_stays_one_value(written: str) -> None:
    value = "x};SERVER=evil"
    braced = written.replace("{", "%7B", written.startswith("{")).replace("}}", "}%7D")
    url = ConnectionUrl.read(f"{ODBC}%3BPWD%3D{braced}")
    assert not url.contains_secret
    words = urls.odbc_words(str(url.complete({"PW": value}).query["odbc_connect"]))
    assert words is not None
    before = "a;" if "a;" in written else ""
    assert words[-1] == ("PWD", urls.odbc_braced(before + value))
    assert [value for keyword, value in words if keyword == "SERVER"] == ["h,1433"]


def test_a_password_from_elsewhere_goes_into_odbc_connect() -> None:
    for there in ("", "%3BPWD%3Dold"):
        whole = ConnectionUrl.read(ODBC + there).complete({}, "a;b}c")
        assert str(whole.query["odbc_connect"]).endswith(";UID=u;PWD={a;b}}c}")
        assert whole.password is None


@pytest.mark.parametrize("text", ["PWD={x", "PWD=a;b", "PWD", "=x", "A=1;{}", "A={x}y;B=1"])
def test_a_connection_string_that_cannot_be_read_whole(text: str) -> None:
    assert urls.odbc_words(text) is None


def test_a_connection_string() -> None:
    assert urls.odbc_words(" A = 1 ; B={x;}}y};C=;D=a b;") == [
        *(("A", "1"), ("B", "{x;}}y}"), ("C", ""), ("D", "a b")),
    ]


def test_what_the_url_says_stays_as_it_is() -> None:
    for text in (
        "postgresql+psycopg://u:p%40q@h:5432/d?options=-c%20a%3Db&application_name=x",
        "postgresql:///d?host=/run&host=/tmp",
        "postgresql://u@[::1]:5432/d",
        "postgresql://",
    ):
        assert ConnectionUrl.read(text).complete({}) == make_url(text)
