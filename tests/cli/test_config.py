"""The verb `config`, profiles and saved filters on the command line."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from console.cli.context import complete_filters
from console.config import KEYS, KeyLevel
from tests.cli.calls import Answer, Console, call, profile
from tests.cli.conftest import Install
from tests.cli.verbs import PASSWORD, refused

UNREACHABLE = "postgresql+psycopg://u@127.0.0.1:1/d"
NO_DATABASE = "No database is named"

Run = Callable[..., Answer]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Call with the test's own configuration and none of the developer's variables."""
    for name in [name for name in os.environ if name.startswith("DBQ_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    def run_configured(*arguments: str, **environment: str) -> Answer:
        return call(*arguments, environment=environment)

    return run_configured


def test_config_says_where_the_file_is_whether_it_exists_and_whether_it_is_valid(
    run: Run, file: Path
) -> None:
    answer = run("config", "path")
    assert (answer.status, answer.text, answer.err) == (0, f"{file}  (does not exist)\n", "")
    assert run("config", "path", "--json").json == {"path": str(file), "exists": False}
    assert run("config", "validate").text == f"{file}  (does not exist): valid; 0 profiles\n"
    shown = run("config", "show", "--json").json
    assert (shown["path"], shown["exists"], shown["profiles"]) == (str(file), False, [])
    refused(run("config"), 2, "show")
    refused(run("config", "edit"), 2, "edit")
    file.write_text("this is [wrong")
    assert run("config", "path").text == f"{file}\n"
    json = run("config", "path", "--json", DBQ_CONFIG="/x/y").json
    assert json == {"path": "/x/y", "exists": False}
    file.write_text(f'[profiles.a]\nurl = "{UNREACHABLE}"\n')
    answer = run("config", "validate")
    assert (answer.status, answer.err) == (0, "")
    assert answer.text == f"{file}: valid; 1 profile\n  a: this machine\n"
    assert run("config", "validate", "--json").json == {
        "path": str(file),
        "exists": True,
        "profiles": ["a"],
        **{key: [] for key in ("filters", "queue_filters", "notifications", "commands")},
        "transport": {"a": "this machine"},
    }


def test_every_verb_that_reads_the_configuration_reports_every_mistake(
    run: Run, file: Path
) -> None:
    file.write_text(f'intervall = "1s"\n[profiles.a]\nurl = "postgresql://u:{PASSWORD}@h/d"\n')
    for arguments in (
        ["config", "validate"],
        ["config", "validate", "--json"],
        ["config", "show"],
        ["status", "--profile", "a"],
        ["status", "--url", UNREACHABLE],
        ["push", "q", "x"],
    ):
        answer = run(*arguments, DBQ_RIGHTS="root")
        refused(
            answer,
            2,
            f"{file}:1: intervall",
            'did you mean "interval"?',
            f"{file}:3: profiles.a.url",
            "environment DBQ_RIGHTS: must be one of read-only, operator, admin",
            "3 errors",
        )


def test_verbs_that_need_no_connection_need_no_configuration(run: Run, file: Path) -> None:
    file.write_text("this is [wrong")
    for arguments in (
        ["designs"],
        ["install", "ring", "r", "--print", "--engine", "postgresql"],
        ["roles", "--engine", "postgresql"],
        ["config", "path"],
        ["config", "show", "--example"],
        ["config", "--help"],
    ):
        assert run(*arguments).status == 0


def test_an_invalid_file_can_be_bypassed(run: Run, file: Path, empty: Console) -> None:
    file.write_text("this is [wrong")
    assert run("status", "--url", empty.url).status == 2
    assert run("status", "--url", empty.url, DBQ_CONFIG="/dev/null").status == 0


def test_the_example_is_a_valid_configuration(run: Run, file: Path) -> None:
    answer = run("config", "show", "--example")
    assert answer.status == 0
    assert run("config", "show", "--example", "--json").json == {"example": answer.text}
    file.write_text(answer.text)
    assert run("config", "validate").status == 0
    refused(run("config", "path", "--example"), 2, "--example goes with show")


TEXT = """\
interval = "2s"

[profiles.a]
url = "postgresql+psycopg://u:${env:PW}@h/d"
rights = "operator"
production = true
[profiles.a.queues."q 1"]
depth.warning = 3

[profiles.b]
url = "postgresql://u@h/d"
password = "command:echo s3cr3t"
"""


def value(shown: Any, key: str) -> tuple[object, object, object, object]:
    one = shown[key]
    assert set(one) == {"value", "source", "name", "line"}
    return one["value"], one["source"], one["name"], one["line"]


def test_show_has_every_value_with_its_origin_as_json_and_as_text(run: Run, file: Path) -> None:
    file.write_text(TEXT)
    shown = run("config", "show", "--json", PW=PASSWORD, DBQ_LOCK_TIMEOUT="1s").json
    parts = {"path", "exists", "defaults", "profiles", "filters", "queue_filters"}
    assert set(shown) == {*parts, "notifications", "commands"}
    assert (shown["path"], shown["exists"]) == (str(file), True)
    assert set(shown["defaults"]) == {k for k in KEYS if KeyLevel.TOP in KEYS[k].levels}
    assert value(shown["defaults"], "interval") == ("2s", "file", str(file), 1)
    assert value(shown["defaults"], "stuck_after") == ("5m", "default", None, None)
    a, b = shown["profiles"]
    assert (a["profile"], a["meant"], b["profile"], b["meant"]) == ("a", False, "b", False)
    assert set(a["settings"]) == set(KEYS)
    url = "postgresql+psycopg://u:***@h/d"
    assert value(a["settings"], "url") == (url, "file", str(file), 4)
    assert value(a["settings"], "rights") == ("operator", "file", str(file), 5)
    assert value(a["settings"], "production") == (True, "file", str(file), 6)
    assert value(a["settings"], "interval") == ("2s", "file", str(file), 1)
    assert value(a["settings"], "password") == (None, "default", None, None)
    lock = ("1s", "environment", "DBQ_LOCK_TIMEOUT", None)
    assert value(a["settings"], "lock_timeout") == lock
    assert list(a["queues"]) == ["q 1"]
    assert list(a["queues"]["q 1"]) == ["depth.warning"]
    assert value(a["queues"]["q 1"], "depth.warning") == (3, "file", str(file), 8)
    assert value(b["settings"], "password") == ("***", "file", str(file), 12)

    text = run("config", "show", PW=PASSWORD).text
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[0] == str(file)
    for line in (
        *("defaults", "profile a", "profile b", 'queue "q 1"', "masks [] default"),
        *(f"interval 2s {file}:1", f"url {url} {file}:4", f"production true {file}:6"),
        *(f"depth.warning 3 {file}:8", f"password *** (command) {file}:12", "password - default"),
    ):
        assert line in lines
    assert PASSWORD not in text


def test_show_marks_the_connection_that_would_be_used(run: Run, file: Path) -> None:
    file.write_text(TEXT)
    (only,) = run("config", "show", "--json", "--profile", "b", "--rights", "admin").json[
        "profiles"
    ]
    assert (only["profile"], only["meant"]) == ("b", True)
    assert value(only["settings"], "rights") == ("admin", "command line", "--rights", None)
    url = f"postgresql://u:{PASSWORD}@h/d?sslpassword={PASSWORD}"
    (only,) = run("config", "show", "--json", "--url", url).json["profiles"]
    assert only["profile"] is None
    shown = "postgresql://u:***@h/d?sslpassword=***"
    assert value(only["settings"], "url") == (shown, "command line", "--url", None)
    assert value(only["settings"], "rights") == ("admin", "default", None, None)
    found = run("config", "show", "--json", DBQ_URL=url).json["profiles"]
    assert [(one["profile"], one["meant"]) for one in found] == [
        (None, True),
        ("a", False),
        ("b", False),
    ]
    assert value(found[0]["settings"], "url") == (shown, "environment", "DBQ_URL", None)
    found = run("config", "show", "--json", DBQ_PROFILE="b").json["profiles"]
    assert [(one["profile"], one["meant"]) for one in found] == [("b", True), ("a", False)]


def configure(file: Path, url: str, *more: str, rights: str = "admin") -> None:
    """A profile `p` of that URL, with its password in the variable PW."""
    text, os.environ["PW"] = profile(url, "p", f'rights = "{rights}"', *more)
    file.write_text(text)


@pytest.fixture(autouse=True)
def _restore_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PW", "")


def test_a_profile_is_named_before_the_verb_after_it_or_in_the_environment(
    run: Run, file: Path, empty: Console
) -> None:
    configure(file, empty.url)
    assert run("install", "fifo", "q", "--profile", "p", "--json").json["connection"] == "p"
    assert run("--profile", "p", "push", "q", "x").status == 0
    assert run("pop", "q", DBQ_PROFILE="p").out == b"x\n"
    assert run("status", "--profile", "p", DBQ_URL=UNREACHABLE).status == 0
    assert run("--profile", "none", "status", "--profile", "p").status == 0
    assert run("status", "--url", empty.url, DBQ_PROFILE="none").status == 0


def test_a_profile_and_a_url_at_once_are_refused(run: Run, file: Path) -> None:
    configure(file, UNREACHABLE)
    for arguments in (
        ["status", "--url", UNREACHABLE, "--profile", "p"],
        ["--url", UNREACHABLE, "status", "--profile", "p"],
        ["--profile", "p", "status", "--url", UNREACHABLE],
    ):
        refused(run(*arguments), 2, "exclude each other")
    refused(run("status", DBQ_URL=UNREACHABLE, DBQ_PROFILE="p"), 2, "DBQ_URL and DBQ_PROFILE")


def test_without_a_database_the_error_lists_the_profiles(run: Run, file: Path) -> None:
    refused(run("status"), 2, NO_DATABASE, "--profile, --url")
    configure(file, UNREACHABLE)
    refused(run("status"), 2, NO_DATABASE, "--profile (p), --url")
    refused(run("status", "--profile", "pp"), 2, "'pp'", "Did you mean: p?")


def test_a_profiles_rights_apply_and_can_be_overridden(
    run: Run, file: Path, empty: Console
) -> None:
    configure(file, empty.url, rights="operator")
    answer = run("install", "fifo", "q", "--profile", "p")
    refused(answer, 4, "needs the right admin", f"operator ({file}:3)")
    assert run("install", "fifo", "q", "--profile", "p", "--rights", "admin").status == 0
    assert run("push", "q", "x", "--profile", "p").status == 0
    answer = run("push", "q", "x", "--profile", "p", DBQ_RIGHTS="read-only")
    refused(answer, 4, "read-only (environment DBQ_RIGHTS)")
    file.write_text(file.read_text().replace('rights = "operator"\n', ""))
    refused(run("push", "q", "x", "--profile", "p"), 4, "has read-only (default)")
    assert run("push", "q", "x", "--url", empty.url).status == 0
    assert run("status", "--profile", "p").status == 0


def test_a_profile_that_cannot_be_reached_is_exit_3(run: Run, file: Path) -> None:
    configure(file, UNREACHABLE)
    refused(run("status", "--profile", "p"), 3, "127.0.0.1")
    file.write_text('[profiles.p]\nurl = "postgresql://u:${env:NOT_SET}@h/d"\n')
    refused(run("status", "--profile", "p"), 3, "NOT_SET is not set")
    file.write_text('[profiles.p]\nurl = "postgresql://u@h/d"\npassword = "prompt"\n')
    refused(run("status", "--profile", "p"), 3, "there is no terminal")
    file.write_text('[profiles.p]\nurl = "${env:WHOLE}"\n')
    refused(run("status", "--profile", "p"), 3, "WHOLE is not set")
    # Its URL names the engine even without a connection.
    assert run("install", "fifo", "q", "--print", "--profile", "p", WHOLE=UNREACHABLE).status == 0


def test_a_profile_marks_production_as_the_catalog_does(
    run: Run, file: Path, empty: Console
) -> None:
    empty.done("install", "fifo", "q")
    empty.done("push", "q", "x")
    configure(file, empty.url, "production = true")
    refused(run("uninstall", "q", "--yes", "q", "--profile", "p"), 4, "--with-messages")
    assert run("uninstall", "q", "--dry-run", "--profile", "p", "--json").json["plan"]["production"]
    gone = run("uninstall", "q", "--with-messages", "--yes", "q", "--url", empty.url)
    assert gone.status == 0


# -- saved filters

FILTERS = """\
[filters]
failed = "state=error"
one = 'error~"no route" limit=1'
[queue_filters]
sick = "errors>0"
"""


@pytest.fixture
def saved(console: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration with a profile `p` of this module's database."""
    own = ('rights = "operator"', "[profiles.p.filters]", 'failed = "state=ready"')
    text, password = profile(console.url, "p", *own)
    monkeypatch.setenv("PW", password)
    path = tmp_path / "config.toml"
    path.write_text(FILTERS + text)
    monkeypatch.setenv("DBQ_CONFIG", str(path))
    return path


@pytest.fixture
def name(console: Console, install: Install) -> str:
    found = install("status")
    for payload in ("a", "b", "c"):
        console.done("push", found, payload)
    console.done("pop", found, "--fail", "no route")
    return found


def states(answer: Answer) -> list[str]:
    assert answer.status == 0, answer
    return [one["state"] for one in answer.json["messages"]]


@pytest.mark.usefixtures("saved")
def test_a_saved_filter_is_replaced_by_its_text(console: Console, name: str) -> None:
    assert states(console("messages", name, "--filter", "@failed", "--json")) == ["error"]
    profile = ("messages", name, "--json", "--profile", "p", "--filter")
    assert states(call(*profile, "@failed")) == ["ready", "ready"]
    assert states(call(*profile, "@failed", "--filter", "older=1h")) == []


@pytest.mark.usefixtures("saved")
def test_plan_and_audit_have_the_text_of_a_saved_filter(console: Console, name: str) -> None:
    plan = console("purge", name, "--filter", "@one", "--dry-run")
    assert (plan.status, "error~no route" in plan.text, "@one" in plan.text) == (0, True, False)
    done = console.done("requeue", name, "--filter", "@one", "--yes", "--json").json
    assert done["result"]["done"] == 1
    (action,) = console.done("audit", name, "--verb", "requeue", "--json").json["actions"]
    assert "error~no route" in str(action["filters"])


@pytest.mark.usefixtures("saved")
def test_an_unknown_saved_filter_is_refused_before_anything_is_done(
    name: str, console: Console
) -> None:
    for verb in (["messages", name], ["purge", name, "--yes", name], ["archive", name, "--yes"]):
        console(*verb, "--filter", "@faled").failed(
            2, "There is no saved filter 'faled'.", "Did you mean: @failed?"
        )
    answer = console("messages", name, "--filter", "@sick")
    assert "There are: failed, one." in answer.err


def test_an_invalid_file_is_refused_with_and_without_a_saved_filter(
    console: Console, name: str, saved: Path
) -> None:
    saved.write_text("this is [wrong")
    environment = {"DBQ_URL": console.url, "DBQ_CONFIG": str(saved)}
    for words in (["--filter", "@failed"], []):
        call("messages", name, *words, environment=environment).failed(2, "not TOML")


def test_config_shows_and_validates_saved_filters(saved: Path) -> None:
    shown = call("config", "show", "--json").json
    failed = shown["filters"]["failed"]
    assert failed == {"value": "state=error", "source": "file", "name": str(saved), "line": 2}
    assert shown["queue_filters"]["sick"]["value"] == "errors>0"
    (profile,) = shown["profiles"]
    assert profile["filters"]["failed"]["value"] == "state=ready"
    assert profile["filters"]["one"]["line"] == 3
    lines = [" ".join(line.split()) for line in call("config", "show").text.splitlines()]
    for line in (f"@failed state=error {saved}:2", f"@failed state=ready {saved}:10"):
        assert line in lines
    assert sum(line.startswith("@one") for line in lines) == 1
    valid = call("config", "validate").text
    assert valid == f"{saved}: valid; 1 profile, 4 saved filters\n  p: this machine\n"
    json = call("config", "validate", "--json").json
    assert (json["filters"], json["queue_filters"]) == (["failed", "one"], ["sick"])


MISTAKES = [
    ("[filters]\nx = 'stat=1'", "2: filters.x is not a filter of messages"),
    ("[filters]\nx = 1", "2: filters.x must be a string"),
    ("[filters]\nx = '@y'", "2: filters.x must be written out"),
    ("[filters]\n'a b' = 'id=1'", '2: filters."a b" needs a name of letters'),
    ("[filters]\nx = ' '", "2: filters.x must not be empty"),
    ("filters = 1", "1: filters must be a table of filters, not a whole number"),
    ("[queue_filters]\nx = ''", "2: queue_filters.x must be one line of text"),
    ("[queue_filters]\nx = 'a @b'", "2: queue_filters.x must be written out"),
    ("[filter]\nx = 'id=1'", '1: filter is not a known key; did you mean "filters"?'),
    ("[profiles.a]\nurl='postgresql://h/d'\nqueue_filters.x = 'a'", "3: profiles.a.queue_fi"),
    ("[groups.g]\ncolor = 'red'", "1: groups.g is not the group of any profile"),
    ("[groups.g]\ncolour = 'red'", 'groups.g.colour is not a known key; did you mean "color"?'),
    ("color = 'red'", "is allowed only in [profiles.NAME] or in [groups.NAME]"),
    ("theme = 'drak'", '1: theme must be one of dark, light, contrast; did you mean "dark"?'),
    ("[profiles.a]\nurl='postgresql://h/d'\ncolor = 3", "3: profiles.a.color must be one of"),
]


def test_mistakes_in_filters_groups_and_colors_are_reported_with_their_line(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    for text, complaint in MISTAKES:
        path.write_text(text)
        answer = call("config", "validate", environment={"DBQ_CONFIG": str(path)})
        assert (answer.status, complaint in answer.err.replace(f"{path}:", "")) == (2, True), text


def test_the_shell_completes_saved_filters(saved: Path) -> None:
    begun = [complete_filters(None, None, begun) for begun in ("@", "st", "payl", "x")]  # type: ignore[arg-type]
    assert begun == [["@failed", "@one"], ["state="], ["payload."], []]
    saved.write_text("this is [wrong")
    assert complete_filters(None, None, "@") == []  # type: ignore[arg-type]


TYPO = """
[profiles.wrong]
url = "postgresql://u@h/d"
rigths = "admin"
group = "other"
[fleets.lost]
url = "postgresql://u@{host}/d"
[notifications.page]
to = "mail:x"
"""


def test_a_mistake_stops_only_those_who_use_the_table_that_has_it(
    empty: Console, file: Path, tmp_path: Path
) -> None:
    right, password = profile(empty.url, "right", 'group = "shop"')
    file.write_text(right + TYPO)
    environment = {"XDG_CONFIG_HOME": str(tmp_path), "PW": password}

    def status(*words: str) -> Answer:
        return call("status", *words, environment=environment)

    assert status("--profile", "right").status == 0
    assert status("--url", empty.url).status == 0
    assert status("--group", "shop").status == 0
    for words, hint in (
        (("--profile", "wrong"), 'did you mean "rights"?'),
        (("--group", "other"), 'did you mean "rights"?'),
        (("--fleet", "lost"), "has no hosts"),
        (("--profile", "lost/a"), "has no hosts"),
    ):
        refused = status(*words)
        assert refused.status == 2, words
        assert refused.err.count("config.toml:") == 1, "only what is used"
        assert hint in refused.err, words
    refused = call("notify", "test", "--profile", "right", environment=environment)
    assert 'must be "webhook:URL"' in refused.err
    call("config", "validate", environment=environment).failed(2, "The configuration has 3 errors.")
    file.write_text("[profiles.right\n")
    assert status("--url", empty.url).status == 2, "no value of such a file can be relied upon"
