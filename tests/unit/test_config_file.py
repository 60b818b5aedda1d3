"""The configuration file: what is valid, and every mistake reported at once."""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from console.config import KEYS, ConfigurationError, KeyLevel, file_path, load
from console.config.feature_tables import example_file
from console.config.file_reader import lines
from console.errors import ConsoleError

SECRET = "hunter2"
URL = 'url = "postgresql://u@h/d"\n'
PROFILE = f"[profiles.a]\n{URL}"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config.toml"


def mistakes(file: Path, text: str, **environment: str) -> list[str]:
    """The text's mistakes, one per line, without the file's path."""
    file.write_text(text)
    with pytest.raises(ConfigurationError) as refused:
        load({"DBQ_CONFIG": str(file), **environment}).require_all()
    error = refused.value
    assert error.exit_status == 2
    assert SECRET not in str(error)
    assert "config validate" in error.next_step
    split = error.why.replace(f"{file}:", "").split("\n")
    assert error.what in {
        "The configuration has an error.",
        f"The configuration has {len(split)} errors.",
    }
    return split


def assert_valid(file: Path, text: str) -> None:
    file.write_text(text)
    load({"DBQ_CONFIG": str(file)}).require_all()


def test_all_mistakes_are_reported_at_once_with_their_lines(file: Path) -> None:
    text = f"""\
intervall = "1s"
rights = "admin"

[profiles.a]
urk = "x"
rights = "amdin"
production = "yes"
password = "{SECRET}"

[profiles.a.queues."b c"]
depht = {{ warning = 1 }}
depth = {{ warnin = 1, critical = 1.5 }}
age = 5
url = "x"

[profiles.c]
url = "postgresql://u:{SECRET}@h/d"
[profile.d]
"""
    assert mistakes(file, text, DBQ_INTERVAL="soon") == [
        '1: intervall is not a known key; did you mean "interval"?',
        "2: rights is not a known key; it is allowed only in [profiles.NAME]",
        "4: profiles.a has no url",
        '5: profiles.a.urk is not a known key; did you mean "url"?',
        '6: profiles.a.rights must be one of read-only, operator, admin; did you mean "admin"?',
        "7: profiles.a.production must be true or false, not a string",
        "8: profiles.a.password must say where the password is, not the password itself: "
        '"${env:NAME}", "command:PROGRAM ...", "keyring:SERVICE/USER" or "prompt"',
        '11: profiles.a.queues."b c".depht is not a known key; did you mean "depth"?',
        '12: profiles.a.queues."b c".depth.warnin is not a known key; did you mean "warning"?',
        '12: profiles.a.queues."b c".depth.critical must be a whole number, not a number',
        '13: profiles.a.queues."b c".age must be { warning = ..., critical = ... }, '
        "not a whole number",
        '14: profiles.a.queues."b c".url is not a known key; it is allowed only in [profiles.NAME]',
        "17: profiles.c.url has a password in clear text, which must not be in a file: put it "
        "into ~/.pgpass, use ${env:NAME} instead, or name its source with the key password",
        '18: profile is not a known key; did you mean "profiles"?',
        "environment DBQ_INTERVAL: must be a duration such as 500ms, 5s, 10m or 1h30m, not 'soon'",
    ]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("interval = 5", "must be a duration"),
        ('interval = "0s"', "from 100 ms to"),
        ('interval = "9999999999999999999999999999d"', "from 100 ms to"),
        ("interval = 1979-05-27", "not a date or time"),
        ('connect_timeout = "0s"', "from 1.0 s"),
        ('statement_timeout = "0s"', "from 100 ms"),
        ('lock_timeout = "25h"', "to 1 d"),
        ('stuck_after = "0s"', "from 1.0 s"),
        ('display_zone = "Europe/Prag"', 'did you mean "Europe/Prague"?'),
        ('display_zone = "../../etc/passwd"', "time zone"),
        ('display_zone = "Europe"', "time zone"),
        ('display_zone = ""', "not empty"),
        ("display_zone = 1", "in quotes"),
        ('masks = "x"', "must be a list"),
        ("masks = [1]", "number 1 of the list is a whole number"),
        ('masks = ["a", "("]', "number 2 is not"),
        ('masks = ["a*"]', "matches only the empty string"),
        ('application_name = "a\\nb"', "one line"),
        ("depth.warning = 0", "1 or more"),
        ("depth.warning = true", "not true or false"),
        ("gap_share.warning = 0", "above 0"),
        ("gap_share.warning = 1.01", "up to 1"),
        ("gap_share.warning = nan", "up to 1"),
        ("errors = []", "not a list"),
        ('"depth.warning" = 1', "not a known key"),
        ("depth.warning.x = 1", "not a table"),
        ("profiles = 1", "must have tables [profiles.NAME]"),
        ("profiles.a = 1", "profiles.a must be a table"),
        ("[[profiles]]", "not a list"),
        (f"{PROFILE}queues = 1", "must have tables [profiles.a.queues.NAME]"),
        (f"{PROFILE}queues.q = 1", "profiles.a.queues.q must be a table"),
        (f'[profiles.""]\n{URL}', 'profiles."" needs a visible name'),
        (f'[profiles."a\\u001b[31m"]\n{URL}', "needs a visible name"),
        ("[profiles.a]\nurl = 1", "must be a URL"),
        (f'[profiles.a]\nurl = "nonsense {SECRET}"', "cannot be read"),
        ('[profiles.a]\nurl = "mysql://h/d"', "unknown engine: 'mysql'"),
        (f'[profiles.a]\nurl = "postgresql://u@h/d?password={SECRET}"', "in clear"),
        (f'{PROFILE}rights = "root"', "not 'root'"),
        (f"{PROFILE}password = 1", "in quotes"),
    ],
)
def test_invalid_values_are_reported_with_their_lines(
    file: Path, text: str, complaint: str
) -> None:
    (found,) = mistakes(file, text)
    assert complaint in found
    assert re.match(r"[0-9]+: ", found)


def test_invalid_toml_is_reported_with_its_line(file: Path) -> None:
    for text in ("[a", f'password = "{SECRET}', "a = 1\na = 2"):
        (found,) = mistakes(file, text)
        assert "not TOML: " in found
    (found,) = mistakes(file, "a = 1\nb = \n")
    assert found.startswith("2:5: not TOML: ")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("depth = { warning = 5, critical = 4 }", "1: depth.critical = 4 is below"),
        ("gap_share.critical = 0.5", "below gap_share.warning = 0.9 (default)"),
        (
            f"depth.warning = 5\n{PROFILE}[profiles.a.queues.q]\ndepth.critical = 4",
            "5: depth.critical = 4 is below depth.warning = 5 (1)",
        ),
        ('age = { warning = "1h", critical = "59m" }', "1: age.critical = 59m is below"),
    ],
)
def test_a_critical_limit_below_the_warning_limit_is_an_error_at_every_level(
    file: Path, text: str, complaint: str
) -> None:
    (found,) = mistakes(file, text)
    assert complaint in found.replace(f"({file}:", "(")


def test_valid_configurations_are_accepted(file: Path) -> None:
    for text in (
        "",
        "# nothing",
        'interval = "1h30m"',
        'display_zone = "local"',
        "masks = ['[[a]', '(?i)iban']",
        'depth = { warning = "off", critical = 3 }',
        "gap_share = { warning = 1, critical = 1 }",
        f'[profiles."a b.c"]\n{URL}[profiles."a b.c".queues."q.r s"]\nstuck_after = "1s"',
        '[profiles.a]\nurl = "${env:NOT_SET}"',
        '[profiles.a]\nurl = "postgresql://${env:U}:${env:P}@h/d?sslpassword=${env:S}"',
    ):
        assert_valid(file, text)


def test_undecodable_and_unreadable_files_are_errors(file: Path) -> None:
    file.write_bytes(b"# \xff")
    for path, complaint, status in (
        (file, "Byte 3 is not UTF-8", 3),
        (file.parent, "Is a directory", 3),
        (file / "x", "Not a directory", 2),
        (file.parent / "none", "No such file", 2),
    ):
        with pytest.raises(ConsoleError, match=complaint) as refused:
            load({"DBQ_CONFIG": str(path)}).require_all()
        assert str(path) in refused.value.what
        assert refused.value.exit_status == status


def test_a_missing_default_file_is_no_error(tmp_path: Path) -> None:
    configuration = load({"XDG_CONFIG_HOME": str(tmp_path)})
    assert not configuration.exists
    assert configuration.names == []
    assert load({"DBQ_CONFIG": "/dev/null"}).exists


def test_the_path_of_the_file_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"DBQ_CONFIG": "/c/x.toml", "XDG_CONFIG_HOME": "/x", "HOME": "/h"}
    assert file_path(given) == Path("/c/x.toml")
    assert file_path(given | {"DBQ_CONFIG": ""}) == Path("/x/dbq-console/config.toml")
    for ignored in ("", "relative"):
        environment = {"XDG_CONFIG_HOME": ignored, "HOME": "/h"}
        assert file_path(environment) == Path("/h/.config/dbq-console/config.toml")

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    assert file_path({}) is None
    assert load({}).names == []


def test_the_example_is_valid_with_and_without_its_commented_out_keys(file: Path) -> None:
    example = example_file()
    assert_valid(file, example)
    shown = load({"DBQ_CONFIG": str(file)})
    assert shown.names == ["orders", "billing", "shops/db1", "shops/db2:5433"]
    # At most one password, with all other keys.
    password_lines = re.findall(r"^#(password = .*)$", example, re.MULTILINE)
    everything = re.sub(r"^#(?!password)(\w+ = )", r"\1", example, flags=re.MULTILINE)
    for password_line in password_lines:
        assert_valid(file, everything.replace(f"#{password_line}", password_line))
    assert len(password_lines) == 4
    for key in KEYS.values():
        assert key.name.partition(".")[0] in example


def test_the_commented_out_defaults_of_the_example_are_the_defaults(file: Path) -> None:
    example = example_file()
    top = example.partition("\n[")[0]
    assert_valid(file, re.sub(r"^#(\w+ = )", r"\1", top, flags=re.MULTILINE))
    uncommented = load({"DBQ_CONFIG": str(file)})
    default = load({"DBQ_CONFIG": "/dev/null"})
    for name, key in KEYS.items():
        if KeyLevel.TOP in key.levels and name not in {"masks", "log_file"}:
            assert uncommented.defaults.value(key).origin.line is not None
            assert uncommented.defaults.value(key).written == default.defaults.value(key).written


TEXT = '''\
# a comment with = and [brackets]
plain = "x"
multi = """
[not.a.table]
not = "a key"
"""

[profiles.a]   # a comment
url = 'y'
list = [
  "# no comment", # one
  "]",
]
limits = { warning = 1, critical = 2 }
limits2.warning = 3
["profiles"."b c".queues."d.e"]
"quoted \\" key" = 1
[profiles]
f.g = 1
[[rows]]
x = 1
'''
EXPECTED = {
    ("plain",): 2,
    ("multi",): 3,
    ("profiles",): 8,
    ("profiles", "a"): 8,
    ("profiles", "a", "url"): 9,
    ("profiles", "a", "list"): 10,
    ("profiles", "a", "limits"): 14,
    ("profiles", "a", "limits", "warning"): 14,
    ("profiles", "a", "limits", "critical"): 14,
    ("profiles", "a", "limits2"): 15,
    ("profiles", "a", "limits2", "warning"): 15,
    ("profiles", "b c"): 16,
    ("profiles", "b c", "queues"): 16,
    ("profiles", "b c", "queues", "d.e"): 16,
    ("profiles", "b c", "queues", "d.e", 'quoted " key'): 17,
    ("profiles", "f"): 19,
    ("profiles", "f", "g"): 19,
    ("rows",): 20,
    ("rows", "x"): 21,
}


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_every_value_has_the_line_where_it_begins(newline: str) -> None:
    text = TEXT.replace("\n", newline)
    assert lines(text) == EXPECTED
    known = set(lines(text))
    assert {path for path in _paths(tomllib.loads(text)) if path[:1] != ("rows",)} <= known


def _paths(table: Mapping[str, Any], above: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
    found = set()
    for name, value in table.items():
        found.add((*above, name))
        if isinstance(value, dict):
            found |= _paths(value, (*above, name))
    return found


def test_an_empty_file_has_no_lines_and_the_last_line_needs_no_newline() -> None:
    assert lines("") == lines("\n# x\n\n") == {}
    assert lines("a = 1\nb = 2") == {("a",): 1, ("b",): 2}
