"""libpq's URLs: several hosts, which SQLAlchemy cannot read, and the values of its options."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from console.errors import UsageError

if TYPE_CHECKING:
    from sqlalchemy import URL

_SEVERAL = re.compile(
    r"(?P<before>postgres(?:ql)?(?:\+\w+)?://(?:[^/]*@)?)(?P<hosts>[^/?@]*,[^/?@]*)(?P<after>.*)",
    re.DOTALL,
)
_HOST = re.compile(r"(?:\[(?P<address>[^\]]*)\]|(?P<name>[^:\[\]]*))(?::(?P<port>\d*))?")

_VALUES: Mapping[str, tuple[str, ...]] = {
    "sslmode": ("disable", "allow", "prefer", "require", "verify-ca", "verify-full"),
    "sslnegotiation": ("postgres", "direct"),
    "sslcertmode": ("disable", "allow", "require"),
    "channel_binding": ("disable", "prefer", "require"),
    "gssencmode": ("disable", "prefer", "require"),
    "load_balance_hosts": ("disable", "random"),
    "target_session_attrs": (
        *("any", "read-write", "read-only"),
        *("primary", "standby", "prefer-standby"),
    ),
}
_WHOLE_NUMBERS = (
    *("connect_timeout", "tcp_user_timeout"),
    *("keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count"),
)
_NUMBER = re.compile(r"\s*[+-]?\d+\s*", re.ASCII)


def check_options(url: URL) -> None:
    """UsageError for a value that libpq would refuse, as a failed connection, or that we ignore."""
    for name in sorted(url.query.keys() & {*_VALUES, *_WHOLE_NUMBERS}):
        given = url.query[name]
        for value in filter(None, (given,) if isinstance(given, str) else given):
            if name in _WHOLE_NUMBERS:
                known, what = _NUMBER.fullmatch(value) is not None, "a whole number"
            else:
                known, what = value in _VALUES[name], f"one of {', '.join(_VALUES[name])}"
            if not known:
                raise UsageError(
                    f"The connection URL's {name} has a value that is not known.",
                    why=f"It must be {what}.",
                    next_step=f"Correct {name} in the URL, or leave it out.",
                )


def with_hosts(read: Callable[[str], URL], text: str) -> URL:
    """The URL; several hosts are in its query, as libpq's `host=a,b` and `port=1,2`. ValueError."""
    several = _SEVERAL.fullmatch(text)
    if several is None:
        return read(text)
    url = read(several["before"] + several["after"])
    matches = [_HOST.fullmatch(one) for one in several["hosts"].split(",")]
    if not all(matches):
        raise ValueError("one of the hosts cannot be read")
    names = [match["address"] or match["name"] for match in matches if match]
    ports = [match["port"] or "" for match in matches if match]
    query = {"host": ",".join(names)} | ({"port": ",".join(ports)} if any(ports) else {})
    return url.update_query_dict(query)


def hosts_label(url: URL) -> str:
    """`db1:5432,db2:5433`; a host may be a socket's folder."""
    if url.host:
        return f"{url.host}:{url.port}" if url.port else url.host
    given = (url.query.get(name, "") for name in ("host", "port"))
    hosts, ports = ((one if isinstance(one, str) else ",".join(one)).split(",") for one in given)
    ports = ports * len(hosts) if len(ports) == 1 else ports
    shown = [f"{host}:{port}" if port else host for host, port in zip(hosts, ports, strict=False)]
    return ",".join(shown) or "local"
