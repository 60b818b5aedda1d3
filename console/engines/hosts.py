"""libpq's URLs with several hosts, which SQLAlchemy cannot read."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlalchemy import URL

_SEVERAL = re.compile(
    r"(?P<before>postgres(?:ql)?(?:\+\w+)?://(?:[^/]*@)?)(?P<hosts>[^/?@]*,[^/?@]*)(?P<after>.*)",
    re.DOTALL,
)
_HOST = re.compile(r"(?:\[(?P<address>[^\]]*)\]|(?P<name>[^:\[\]]*))(?::(?P<port>\d*))?")


def with_hosts(read: Callable[[str], URL], text: str) -> URL:
    """The URL; several hosts are in its query, as libpq's `host=a,b` and `port=1,2`. ValueError."""
    several = _SEVERAL.fullmatch(text)
    if several is None:
        return read(text)
    url = read(several["before"] + several["after"])
    found = [_HOST.fullmatch(one) for one in several["hosts"].split(",")]
    if not all(found):
        raise ValueError("one of the hosts cannot be read")
    names = [one["address"] or one["name"] for one in found if one]
    ports = [one["port"] or "" for one in found if one]
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
