"""Any configuration, environment or URL is read, or refused with a reason."""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from console.config import KEYS, ConfigurationError, load
from console.config.file_reader import FILTERS, QUEUE_FILTERS, read, statements
from console.config.file_writer import WrongFieldError, save_filter, save_theme
from console.config.urls import ConnectionUrl
from console.engines import label_of
from console.errors import ConsoleError, UsageError
from console.filters import expand, words_of
from console.monitor.filters import parse
from tests.tools.hostile import TEXTS, outcome, texts

SECRET = "Pl4nted"
PATH = Path("/nowhere/config.toml")

VALUES = st.recursive(
    st.none().map(lambda _: "")
    | texts.map(lambda text: text.encode(errors="replace").decode())
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.booleans()
    | st.sampled_from(["1s", "5m", "off", "red", "light", "state=error", "postgresql://u@h/d"]),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)
WORDS = st.sampled_from([*KEYS, "profiles", "filters", "queue_filters", "groups", "queues", "late"])
TABLES = st.recursive(
    VALUES, lambda inner: st.dictionaries(WORDS | texts, inner, max_size=4), max_leaves=12
)
DOCUMENTS = st.dictionaries(WORDS | texts, TABLES, max_size=5)


def toml(found: object) -> str:
    """As an inline value of TOML."""
    if isinstance(found, Mapping):
        return "{" + ", ".join(f"{_text(k)} = {toml(v)}" for k, v in found.items()) + "}"
    if isinstance(found, list):
        return "[" + ", ".join(map(toml, found)) + "]"
    if isinstance(found, str):
        return _text(found)
    return json.dumps(found).replace("NaN", "nan").replace("Infinity", "inf")


def _text(text: str) -> str:
    valid = text.encode(errors="replace").decode()
    return json.dumps(valid, ensure_ascii=False).replace("\x7f", "\\u007f")


def read_configuration(text: str, **environment: str) -> None:
    """Reads everything that a verb would need."""
    document = read(PATH, text)
    for mistake in document.mistakes:
        assert str(mistake).startswith(str(PATH))
    if document.mistakes:
        return
    for profile in document.profiles.values():
        assert profile.values["url"].meaning.shown


@settings(max_examples=50)
@given(DOCUMENTS)
def test_any_toml_is_read_or_every_mistake_is_reported(found: dict[str, Any]) -> None:
    read_configuration("\n".join(f"{_text(name)} = {toml(value)}" for name, value in found.items()))


@settings(max_examples=50)
@given(texts | st.lists(texts, max_size=6).map("\n".join))
def test_any_text_is_read_or_its_mistakes_are_reported(text: str) -> None:
    read_configuration(text)


@given(st.dictionaries(st.sampled_from([k.variable for k in KEYS.values() if k.variable]), texts))
def test_any_environment_is_read_or_refused(environment: dict[str, str]) -> None:
    found = outcome(lambda: load({"DBQ_CONFIG": "/dev/null", **environment}))
    if isinstance(found, ConsoleError):
        assert isinstance(found, ConfigurationError)
        assert found.next_step
        assert "environment DBQ_" in found.why
        return
    for key in KEYS.values():
        assert found.defaults.value(key).origin


PARTS = texts.map(lambda text: text.replace(SECRET, ""))
URLS = st.builds(
    lambda scheme, user, host, port, name, query: (
        f"{scheme}://{user}:{SECRET}@{host}{port}/{name}{query}"
    ),
    st.sampled_from(["postgresql", "postgresql+psycopg", "mssql+pyodbc", "mysql", "", "a b"])
    | PARTS,
    PARTS,
    st.sampled_from(["h", "[::1]", "${env:HOST}", ""]) | PARTS,
    st.sampled_from(["", ":1", ":x", ":99999999", ":-1", ":\u0661"]),
    PARTS,
    st.sampled_from(["", "?a=b", "?a", "?odbc_connect=x", "?=", "?sslmode=%zz&a=1&a=2"]) | PARTS,
)


@settings(max_examples=100)
@given(URLS | texts)
def test_any_url_is_read_or_refused_and_no_password_is_shown(text: str) -> None:
    url = outcome(lambda: ConnectionUrl.read(text))
    shown = [str(url)]
    if isinstance(url, ConnectionUrl):
        shown += [url.shown, repr(url)]
        known = outcome(lambda: url.known({"HOST": "h"}))
        if isinstance(known, ConnectionUrl):
            shown += [str(known.public), str(outcome(lambda: label_of(known.public)))]
            outcome(lambda: known.complete({"HOST": "h"}))
    assert [one for one in shown if SECRET in one] == []


# What is saved is read back, and nothing else changes.

NAMES = st.from_regex(r"[\w-]{1,12}", fullmatch=True)
MESSAGES = st.sampled_from(
    ["state=error", "id=1 id=2", 'error~"no route"', "payload.a=x older=1h", "'id=a b'", "id=é"]
)
FILES = st.sampled_from(
    [
        "",
        "# only words\n",
        "# ours\n\n# theirs\ninterval = '2s' # slow",
        "[filters]\n# the first\na_b = 'id=1' # last\n\n[profiles.x] # y\nurl = 'postgresql://h/d'\n",
        "interval = '2s'\r\n[filters]\r\n[queue_filters]\r\n'z' = '''mail'''\r\n# end",
        "theme = 'light'   # at day\n[profiles.x]\nurl = 'postgresql://h/d'",
        "masks = [\n  'a', # one\n]\n[queue_filters]\n",
        "filters = { a_b = 'id=1' }\n",
        "filters.a_b = 'id=1'\n",
        'theme = """dark"""\n',
    ]
)
CHANGES = st.one_of(
    st.tuples(st.just(FILTERS), NAMES, MESSAGES | texts),
    st.tuples(st.just(QUEUE_FILTERS), NAMES, texts),
    st.tuples(st.just("theme"), st.just(""), st.sampled_from(["dark", "light", "contrast"])),
)


def save(path: Path, kind: str, name: str, line: str) -> None:
    if kind == "theme":
        save_theme(path, line)
    else:
        save_filter(path, kind, name, line)


@settings(max_examples=30)
@given(before=FILES, changes=st.lists(CHANGES, max_size=4))
def test_saved_values_are_read_back_and_all_else_is_unchanged(
    tmp_path_factory: pytest.TempPathFactory, before: str, changes: list[tuple[str, str, str]]
) -> None:
    path = tmp_path_factory.mktemp("config") / "config.toml"
    path.write_bytes(before.encode())
    for kind, name, line in changes:
        old = path.read_bytes().decode()
        refused = outcome(lambda: save(path, kind, name, line))  # noqa: B023  # called at once
        new = path.read_bytes().decode()
        if refused is not None:
            assert new == old
            continue
        expected = tomllib.loads(old)
        (expected if kind == "theme" else expected.setdefault(kind, {}))[name or kind] = line
        assert tomllib.loads(new) == expected
        assert not read(path, new).mistakes
        # A line may be added; the theme's may change, and that of an inline table; no other does.
        kept = new.split("\n")
        lost = [one for one in old.split("\n") if one not in kept]
        assert all(one.startswith(("theme", f"{kind} =")) for one in lost), (old, new)
        assert ("\r\n" in old) <= ("\n" not in new.replace("\r\n", ""))


@pytest.mark.parametrize("name", ["", "a b", "a.b", "@x", "é" * 65, "x\n", "a=b", "\x1b[31m"])
def test_invalid_filter_names_are_refused(tmp_path: Path, name: str) -> None:
    for kind, line in ((FILTERS, "id=1"), (QUEUE_FILTERS, "mail")):
        with pytest.raises(WrongFieldError) as refused:
            save_filter(tmp_path / "x.toml", kind, name, line)
        assert refused.value.key == "name"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("line", ["", " ", "a\nb", "@late", "id=1 @late", "\x1b[2J", "stat=x"])
def test_invalid_message_filters_are_refused(tmp_path: Path, line: str) -> None:
    with pytest.raises(WrongFieldError) as refused:
        save_filter(tmp_path / "x.toml", FILTERS, "late", line)
    assert refused.value.key == "filter"
    assert list(tmp_path.iterdir()) == []


def test_a_saved_filter_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    save_filter(path, FILTERS, "late", "older=1h")
    text = path.read_text()
    save_filter(path, FILTERS, "late", "older=1h")
    save_filter(path, QUEUE_FILTERS, "late", "mail")
    assert path.read_text().startswith(text)
    with pytest.raises(WrongFieldError, match=r"late = 'older=1h'"):
        save_filter(path, FILTERS, "late", "older=2h")
    assert "older=2h" not in path.read_text()


STATEMENTS = st.sampled_from(["a = 1", "[t]", "[t.u]", "b = '''x\ny'''", "# c", ""])


@given(st.lists(STATEMENTS, max_size=6, unique=True))
def test_statements_have_their_lines(written: list[str]) -> None:
    expected, first = [], 1
    for one in written:
        last = first + one.count("\n")
        if one and not one.startswith("#"):
            expected.append((first, last))
        first = last + 1
    found = statements("\n".join(written))
    assert [(one.first, one.last) for one in found] == expected


# Filters and their lines.


@given(st.lists(texts, max_size=3).map(" ".join))
def test_any_line_of_filters_is_read_or_refused(line: str) -> None:
    try:
        words = expand(words_of(line), {"late": ("older=1h", "state=error")})
        found = parse(words)
    except UsageError:
        return
    assert "@late" not in words
    assert parse(found.words) == found


def test_an_unknown_saved_filter_is_refused_with_the_known_ones() -> None:
    for name in TEXTS:
        with pytest.raises(UsageError, match="no saved filter") as refused:
            expand([f"@{name}"], {"late": ("id=1",)})
        assert "There are: late." in refused.value.why
    assert expand(["@late", "id=2"], {"late": ("id=1",)}) == ("id=1", "id=2")
