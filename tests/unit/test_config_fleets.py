"""Fleets in the configuration: one profile per host."""

from pathlib import Path

import pytest

from console.command_line import CommandLineValues
from console.config import ConfigurationError, load
from console.config.file_reader import read_hosts
from console.config.values import WrongValueError
from console.errors import ConsoleError, UsageError
from console.rights import Rights

FLEET = """\
[profiles.a]
url = "postgresql://u@h/a"

[fleets.shops]
url = "postgresql://u@{host}/orders"
production = true
depth = { warning = 7 }
hosts = %s

[groups.shops]
color = "red"
"""


def fleet(tmp_path: Path, hosts: str) -> dict[str, str]:
    file = tmp_path / "config.toml"
    file.write_text(FLEET % hosts)
    return {"DBQ_CONFIG": str(file), "PATH": "/usr/bin:/bin"}


@pytest.mark.parametrize(
    "hosts", ['["db1", "[::1]:5433"]', '"file:hosts"', "\"command:printf 'db1\\n[::1]:5433\\n'\""]
)
def test_each_host_has_a_profile_with_the_settings_of_its_fleet(tmp_path: Path, hosts: str) -> None:
    (tmp_path / "hosts").write_text("# shops\ndb1\n\n[::1]:5433  # by tunnel\n")
    found = load(fleet(tmp_path, hosts))
    assert found.names == ["a", "shops/db1", "shops/[::1]:5433"]
    first, second = found.in_fleet("shops")
    assert [one.label for one in found.in_group("shops")] == [first.label, second.label]
    assert first.shown_url == "postgresql://u@db1/orders"
    assert second.shown_url == "postgresql://u@[::1]:5433/orders"
    for one in (first, second):
        assert (one.production, one.color, one.thresholds()["depth"].warning) == (True, "red", 7)


def test_hosts_are_looked_up_only_when_needed(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    configuration = load(fleet(tmp_path, f'"command:touch {ran}"'))
    chosen = configuration.selected_profile(CommandLineValues(profile="a"), url_rights=Rights.ADMIN)
    assert chosen is not None
    assert not ran.exists()
    with pytest.raises(UsageError, match="names no host"):
        configuration.in_fleet("shops")
    assert ran.exists()


def test_only_the_hosts_of_the_selected_fleet_are_looked_up_and_only_once(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    program = tmp_path / "hosts.sh"
    program.write_text(f"echo $1 >> {ran}; echo db1")
    environment = fleet(tmp_path, f'"command:sh {program} shops"')
    with (tmp_path / "config.toml").open("a") as file:
        url = "postgresql://u@{host}/mail"
        file.write(f'[fleets.mail]\nurl = "{url}"\nhosts = "command:sh {program} mail"\n')
    configuration = load(environment)
    assert [profile.label for profile in configuration.in_fleet("shops")] == ["shops/db1"]
    named = CommandLineValues(profile="shops/db1")
    assert configuration.selected_profile(named, url_rights=Rights.ADMIN) is not None
    assert ran.read_text().split() == ["shops"]
    assert configuration.names == ["a", "shops/db1", "mail/db1"]
    assert ran.read_text().split() == ["shops", "mail"]


@pytest.mark.parametrize(
    ("hosts", "why", "kind"),
    [
        ('"file:none"', "No such file", ConsoleError),
        ('"command:false"', "exit status 1", ConsoleError),
        ('"command:echo a b"', "is not a host", UsageError),
        ("\"command:printf 'a\\na\\n'\"", "twice", UsageError),
    ],
)
def test_unavailable_and_invalid_lists_of_hosts_are_reported(
    tmp_path: Path, hosts: str, why: str, kind: type[ConsoleError]
) -> None:
    found = load(fleet(tmp_path, hosts))
    with pytest.raises(ConsoleError) as refused:
        found.in_fleet("shops")
    assert type(refused.value) is kind
    assert why in str(refused.value)
    with pytest.raises(UsageError, match="no fleet 'other'"):
        found.in_fleet("other")


@pytest.mark.parametrize(
    "hosts", [7, [], ["a", 1], ["a/b"], ["a", "a"], "db1", "file:", "command:", "command:'"]
)
def test_invalid_hosts_are_refused(hosts: object) -> None:
    with pytest.raises(WrongValueError):
        read_hosts(hosts)


def test_mistakes_are_reported_with_their_lines(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(
        '[fleets."a/b"]\nurl = "postgresql://u@{host}/d"\nhosts = ["x"]\n'
        '[fleets.b]\nurl = "postgresql://u@h/d"\n'
        '[fleets.c]\nhosts = "x"\ncolour = "red"\n'
    )
    with pytest.raises(ConfigurationError) as refused:
        load({"DBQ_CONFIG": str(file)}).require_all()
    reported = refused.value.why.replace(f"{file}:", "").split("\n")
    assert [line.partition(":")[0] for line in reported] == ["1", "4", "5", "6", "7", "8"]
    assert "without /" in reported[0]
    assert "has no hosts" in reported[1]
    assert "needs {host}" in reported[2]
    assert "has no url" in reported[3]
