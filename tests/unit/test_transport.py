"""What protects a connection: by URL, service file, environment and profile."""

from pathlib import Path

import pytest
from sqlalchemy import make_url

from console.engines.transport import planned, secured

FULL, REQUIRED = {"sslmode": "verify-full"}, {"require_auth": "scram-sha-256,gss,sspi,none"}
SYSTEM = {**FULL, "sslrootcert": "system"}


def added(
    url: str, *, production: bool = False, environment: dict[str, str] | None = None
) -> dict[str, str]:
    parsed = make_url(f"postgresql+psycopg://{url}")
    query = secured(parsed, production=production, environment=environment or {}).query
    return {name: str(value) for name, value in query.items() if name not in parsed.query}


@pytest.mark.parametrize(
    "url",
    [
        "u@localhost/d",
        "u@127.0.0.1/d",
        "u@[::1]/d",
        "/d",
        "u@/d?host=/run/postgresql",
        "u@/d?host=@abstract",
        "u@db.example/d?hostaddr=127.0.0.1",
    ],
)
def test_this_machine_is_trusted(url: str) -> None:
    assert added(url, production=True) == {}
    assert planned(make_url(f"postgresql://{url}"), production=True, environment={}) == (
        "this machine"
    )


@pytest.mark.parametrize(
    ("url", "environment", "test", "production"),
    [
        ("u@db/d", {}, REQUIRED, SYSTEM),
        ("u@/d?host=/run/x,db", {}, REQUIRED, SYSTEM),
        ("u@/d?host=/run/x&host=db", {}, REQUIRED, SYSTEM),
        ("u@localhost/d?hostaddr=10.0.0.1", {}, REQUIRED, SYSTEM),
        ("u@/d", {"PGHOST": "db"}, REQUIRED, SYSTEM),
        ("u@db/d?sslmode=prefer", {}, REQUIRED, REQUIRED),
        ("u@db/d?sslmode=require", {}, REQUIRED, REQUIRED),
        ("u@db/d?sslmode=require&sslrootcert=x", {}, {}, {}),
        ("u@db/d?sslmode=verify-ca", {}, {}, {}),
        ("u@db/d?sslmode=verify-full", {}, {}, {}),
        ("u@db/d?sslrootcert=system", {}, {}, FULL),
        ("u@db/d?sslrootcert=x", {}, REQUIRED, FULL),
        ("u@db/d?require_auth=password", {}, {}, SYSTEM),
        ("u@db/d?sslmode=disable&require_auth=md5", {}, {}, {}),
        ("u@db/d", {"PGSSLMODE": "disable"}, REQUIRED, REQUIRED),
        ("u@db/d", {"PGSSLMODE": "verify-full"}, {}, {}),
        ("u@db/d", {"PGREQUIREAUTH": "md5"}, {}, SYSTEM),
        ("u@db/d", {"PGSSLROOTCERT": "x"}, REQUIRED, FULL),
    ],
)
def test_what_nothing_else_says_is_added(
    url: str, environment: dict[str, str], test: dict[str, str], production: dict[str, str]
) -> None:
    assert added(url, environment=environment) == test
    assert added(url, environment=environment, production=True) == production


def test_a_service_file_goes_before_the_environment_and_after_the_url(tmp_path: Path) -> None:
    file = tmp_path / ".pg_service.conf"
    file.write_text("# a comment\n[other]\nldap://x\n[s]\nhost=db\nsslmode=verify-ca\n")
    home = {"HOME": str(tmp_path), "PGSSLMODE": "disable"}
    assert added("u@/d?service=s", environment=home, production=True) == {}
    assert added("u@/d", environment={**home, "PGSERVICE": "s"}, production=True) == {}
    assert added("u@/d?service=s&sslmode=prefer", environment=home) == REQUIRED
    elsewhere = {"PGSERVICEFILE": str(file)}
    assert added("u@/d?service=s", environment=elsewhere, production=True) == {}
    assert added("u@db/d?service=none", environment=elsewhere) == REQUIRED
    file.write_bytes(b"\xff[")
    assert added("u@db/d?service=s", environment=home) == REQUIRED


def test_this_user_s_root_certificate_is_the_authority_if_there_is_one(tmp_path: Path) -> None:
    (tmp_path / ".postgresql").mkdir()
    (tmp_path / ".postgresql" / "root.crt").touch()
    home = {"HOME": str(tmp_path)}
    assert added("u@db/d", environment=home, production=True) == FULL
    assert added("u@db/d?sslmode=require", environment=home) == {}


def test_the_words_say_whether_the_certificate_is_checked() -> None:
    url = make_url("postgresql://u@db/d")
    assert planned(url, production=True, environment={}) == (
        "TLS, the certificate is checked (sslmode=verify-full)"
    )
    assert planned(url, production=False, environment={}) == (
        "sslmode=prefer, the certificate is not checked: no password in clear or as MD5"
    )
