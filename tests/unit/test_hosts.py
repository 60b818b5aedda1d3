"""URLs with several hosts, as libpq has them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

from console.config.urls import ConnectionUrl
from console.engines import label_of, parse_url
from console.engines.transport import planned
from console.errors import UsageError

NAMES = st.from_regex(r"[a-z][a-z0-9_-]{0,8}(\.[a-z]{1,4})?", fullmatch=True)
ADDRESSES = st.ip_addresses(v=6).map(lambda one: f"[{one}]") | st.ip_addresses(v=4).map(str)
PORTS = st.none() | st.integers(1, 65535)
HOSTS = st.lists(st.tuples(NAMES | ADDRESSES, PORTS), min_size=2, max_size=4)
LOGINS = st.sampled_from(("", "u@", "u:p%40%2C%2F@", "u:${env:PW}@"))


@given(HOSTS, LOGINS, st.sampled_from(("postgresql", "postgres", "postgresql+psycopg")))
def test_hosts_and_ports_are_those_that_libpq_reads(
    hosts: list[tuple[str, int | None]], login: str, scheme: str
) -> None:
    authority = ",".join(host if port is None else f"{host}:{port}" for host, port in hosts)
    rest = f"{login}{authority}/db?target_session_attrs=read-write"
    url = ConnectionUrl.read(f"{scheme}://{rest}").complete({"PW": "secret"})
    given_to_driver = PGDialect_psycopg().create_connect_args(url)[1]  # type: ignore[no-untyped-call]
    wanted = conninfo_to_dict(f"postgresql://{rest.replace('${env:PW}', 'secret')}")
    ports = given_to_driver.pop("port", "").split(",")
    assert [port or "5432" for port in ports] == [
        port or "5432" for port in str(wanted.pop("port", "")).split(",")
    ] or not any(ports)
    assert given_to_driver == wanted
    again = parse_url(url.render_as_string(hide_password=False))
    assert again == url, "what is printed is accepted"
    assert label_of(url).count(",") == len(hosts) - 1


def test_the_label_and_the_protection_are_of_all_hosts() -> None:
    url = parse_url("postgresql://u@127.0.0.1:5432,db2:5433/orders")
    assert label_of(url) == "127.0.0.1:5432,db2:5433/orders"
    assert "not checked" in planned(url, production=False)
    loopbacks = parse_url("postgresql://u@127.0.0.1:5432,[::1]/orders")
    assert planned(loopbacks, production=False) == "this machine"
    by_sqlalchemy = parse_url("postgresql://u@/orders?host=127.0.0.1:5432&host=db2:5433")
    assert label_of(by_sqlalchemy) == label_of(url)


@pytest.mark.parametrize("hosts", ["a:b,c", "a:1:2,c", "[::1,c"])
def test_hosts_that_cannot_be_read_are_refused(hosts: str) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        parse_url(f"postgresql://u@{hosts}/db")
