"""What protects a connection to PostgreSQL: TLS, the server's certificate, how passwords are sent.

libpq's own default encrypts where the server offers it and believes whoever answers: a false server
says no, and asks for the password in clear. So a server whose certificate is not checked gets no
password in clear or as MD5, and a production profile checks certificate and name. What the URL,
libpq's environment variables or its service file say goes first. This machine is trusted: sockets
and loopback addresses.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from console.engines.product import THIS_MACHINE

if TYPE_CHECKING:
    from psycopg import Connection as PsycopgConnection
    from sqlalchemy import URL

_VARIABLES = {
    "host": "PGHOST",
    "hostaddr": "PGHOSTADDR",
    "require_auth": "PGREQUIREAUTH",
    "sslmode": "PGSSLMODE",
    "sslrootcert": "PGSSLROOTCERT",
    "service": "PGSERVICE",
    "servicefile": "PGSERVICEFILE",
}
_NO_PASSWORD = "scram-sha-256,gss,sspi,none"  # noqa: S105  # libpq's names of methods
"""What may be asked for without a checked certificate: nothing that tells the password."""
_CHECKED = {"verify-ca", "verify-full"}


@dataclass(frozen=True)
class _Settings:
    """What libpq would use."""

    values: Mapping[str, str]
    home: Path | None

    def __getitem__(self, name: str) -> str:
        return self.values.get(name, "")

    @property
    def local(self) -> bool:
        """Whether each of the hosts is this machine; without any it is a socket."""
        return all(map(_is_local, (self["hostaddr"] or self["host"]).split(",")))

    @property
    def has_root(self) -> bool:
        """Whether there is a certificate to check the server's by."""
        default = self.home is not None and (self.home / ".postgresql" / "root.crt").exists()
        return bool(self["sslrootcert"]) or default

    @property
    def mode(self) -> str:
        default = "verify-full" if self["sslrootcert"] == "system" else "prefer"
        return self["sslmode"] or default

    @property
    def checks(self) -> bool:
        """Whether no server without a trusted certificate is connected to."""
        return self.mode in _CHECKED or (self.mode == "require" and self.has_root)


def secured(url: URL, *, production: bool, environment: Mapping[str, str] = os.environ) -> URL:
    """The URL with what protects its connection, as far as nothing else says so."""
    from psycopg.pq import version  # noqa: PLC0415  # a verb imports what it uses

    settings = _read(url, environment)
    if settings.local:
        return url
    added = {}
    if production and not settings["sslmode"]:
        added["sslmode"] = "verify-full"
        if not settings.has_root:
            added["sslrootcert"] = "system"
    protected = _Settings({**settings.values, **added}, settings.home)
    if not (protected.checks or settings["require_auth"]) and version() >= 160000:
        added["require_auth"] = _NO_PASSWORD
    return url.update_query_dict(added)


def planned(url: URL, *, production: bool, environment: Mapping[str, str] = os.environ) -> str:
    """What a connection by this URL will have, in words."""
    settings = _read(secured(url, production=production, environment=environment), environment)
    if settings.local:
        return THIS_MACHINE
    if settings.checks:
        return f"TLS, the certificate is checked (sslmode={settings.mode})"
    encrypted = "TLS" if settings.mode == "require" else f"sslmode={settings.mode}"
    if settings["require_auth"] != _NO_PASSWORD:
        return f"{encrypted}, the certificate is not checked, and passwords are sent as set"
    return f"{encrypted}, the certificate is not checked: no password in clear or as MD5"


def has(connection: PsycopgConnection[object], version: str | None) -> str:
    """What an open connection has, in words. `version`: of TLS, as the server says."""
    options = connection.pgconn.info
    values = {option.keyword.decode(): option.val.decode() for option in options if option.val}
    settings = _Settings(values, _home(os.environ))
    if connection.pgconn.ssl_in_use:
        return f"{version or 'TLS'}, certificate {'' if settings.checks else 'not '}checked"
    return THIS_MACHINE if settings.local else "not encrypted"


def _read(url: URL, environment: Mapping[str, str]) -> _Settings:
    """The URL goes first, then the service, then the environment."""
    given = {
        name: value if isinstance(value, str) else ",".join(value)
        for name, value in url.query.items()
    }
    if url.host:
        given.setdefault("host", url.host)
    outside = {name: environment.get(of, "") for name, of in _VARIABLES.items()}
    home = _home(environment)
    service = given.get("service") or outside["service"]
    file = given.get("servicefile") or outside["servicefile"]
    known = _service(service, file, environment, home) if service else {}
    return _Settings({**outside, **known, **given}, home)


def _home(environment: Mapping[str, str]) -> Path | None:
    return Path(environment["HOME"]) if environment.get("HOME") else None


def _service(
    name: str, file: str, environment: Mapping[str, str], home: Path | None
) -> Mapping[str, str]:
    """The service's keys, from the first file that has it; libpq itself reports a missing one."""
    import configparser  # noqa: PLC0415  # a verb imports what it uses

    files = [Path(file)] if file else [] if home is None else [home / ".pg_service.conf"]
    files += [Path(environment.get("PGSYSCONFDIR") or "/etc/postgresql-common") / "pg_service.conf"]
    for path in files:
        parser = configparser.ConfigParser(
            interpolation=None,
            strict=False,
            delimiters=("=",),
            comment_prefixes=("#",),
            allow_no_value=True,
            default_section="",
        )
        try:
            parser.read(path, encoding="utf-8")
        except (OSError, configparser.Error, UnicodeDecodeError):
            continue
        if parser.has_section(name):
            return {key: value for key, value in parser.items(name) if value}
    return {}


def _is_local(host: str) -> bool:
    host = host.strip().removeprefix("[").removesuffix("]")
    if not host or host == "localhost" or host.startswith(("/", "@")):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
