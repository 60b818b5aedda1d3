"""Filters that have a name, on the command line."""

from pathlib import Path

import pytest
from sqlalchemy import make_url

from console.verbs.parameters import complete_filters
from tests.cli.calls import Answer, Console, call
from tests.cli.conftest import Install

FILTERS = """\
[filters]
failed = "state=error"
one = 'error~"no route" limit=1'
[queue_filters]
sick = "errors:>0"
[profiles.p]
url = "URL"
rights = "operator"
[profiles.p.filters]
failed = "state=ready"
"""


@pytest.fixture
def file(console: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration with a profile `p` of this module's database."""
    url = make_url(console.url)
    monkeypatch.setenv("SAVED_PW", str(url.password or ""))
    shown = url.set(password="PW").render_as_string(hide_password=False)
    path = tmp_path / "config.toml"
    path.write_text(FILTERS.replace("URL", shown.replace(":PW@", ":${env:SAVED_PW}@")))
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


@pytest.mark.usefixtures("file")
def test_a_saved_filter_stands_for_its_words(console: Console, name: str) -> None:
    assert states(console("messages", name, "--filter", "@failed", "--json")) == ["error"]
    profile = ("messages", name, "--json", "--profile", "p", "--filter")
    assert states(call(*profile, "@failed")) == ["ready", "ready"]
    assert states(call(*profile, "@failed", "--filter", "older=1h")) == []


@pytest.mark.usefixtures("file")
def test_a_plan_says_the_words_and_the_audit_has_them(console: Console, name: str) -> None:
    plan = console("purge", name, "--filter", "@one", "--dry-run")
    assert (plan.status, "error~no route" in plan.text, "@one" in plan.text) == (0, True, False)
    done = console.done("requeue", name, "--filter", "@one", "--yes", "--json").json
    assert done["result"]["done"] == 1
    (action,) = console.done("audit", name, "--verb", "requeue", "--json").json["actions"]
    assert "error~no route" in str(action["filters"])


@pytest.mark.usefixtures("file")
def test_one_that_is_not_there_is_told_before_anything_is_done(name: str, console: Console) -> None:
    for verb in (["messages", name], ["purge", name, "--yes", name], ["archive", name, "--yes"]):
        answer = console(*verb, "--filter", "@faled")
        assert (answer.status, answer.out) == (2, b"")
        assert "There is no saved filter 'faled'." in answer.err
        assert "Did you mean: @failed?" in answer.err
    answer = console("messages", name, "--filter", "@sick")
    assert "There are: failed, one." in answer.err


def test_without_a_name_no_configuration_is_wanted(console: Console, name: str, file: Path) -> None:
    file.write_text("this is [wrong")
    environment = {"DBQ_URL": console.url, "DBQ_CONFIG": str(file)}
    for words in (["--filter", "@failed"], []):
        answer = call("messages", name, *words, environment=environment)
        assert answer.status == 2
        assert "not TOML" in answer.err


def test_config_knows_them(file: Path) -> None:
    shown = call("config", "show", "--json").json
    late = shown["filters"]["failed"]
    assert late == {"value": "state=error", "source": "file", "name": str(file), "line": 2}
    assert shown["queue_filters"]["sick"]["value"] == "errors:>0"
    (profile,) = shown["profiles"]
    assert profile["filters"]["failed"]["value"] == "state=ready"
    assert profile["filters"]["one"]["line"] == 3
    lines = [" ".join(line.split()) for line in call("config", "show").text.splitlines()]
    for line in (f"@failed state=error {file}:2", f"@failed state=ready {file}:10"):
        assert line in lines
    assert sum(line.startswith("@one") for line in lines) == 1
    assert call("config", "validate").text == f"{file}: valid; 1 profile, 4 saved filters\n"
    found = call("config", "validate", "--json").json
    assert (found["filters"], found["queue_filters"]) == (["failed", "one"], ["sick"])


MISTAKES = [
    ("[filters]\nx = 'stat=1'", "2: filters.x is not a filter of messages"),
    ("[filters]\nx = 1", "2: filters.x must be a text"),
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


def test_what_is_wrong_with_them_is_told_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    for text, complaint in MISTAKES:
        path.write_text(text)
        answer = call("config", "validate", environment={"DBQ_CONFIG": str(path)})
        assert (answer.status, complaint in answer.err.replace(f"{path}:", "")) == (2, True), text


def test_the_shell_completes_them(file: Path) -> None:
    begun = [complete_filters(None, None, begun) for begun in ("@", "st", "payl", "x")]  # type: ignore[arg-type]
    assert begun == [["@failed", "@one"], ["state="], ["payload."], []]
    file.write_text("this is [wrong")
    assert complete_filters(None, None, "@") == []  # type: ignore[arg-type]
