"""Preset files, shipped and a user's own: contents, the resulting design, ownership."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from console.designs import presets
from console.engines import open_database
from console.errors import RefusedError, UsageError
from console.features.presets import adopt, discovery
from console.features.presets.designs import libraries as shipped
from console.features.presets.designs import own, own_file
from console.features.presets.preset_check import check
from console.sql import templates
from tests.cli.own_presets import PRESET, ready_if


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv(own.VARIABLE, raising=False)
    path = tmp_path / "dbq-console" / "presets" / "crate.sql"
    path.parent.mkdir(parents=True)
    path.write_text(PRESET)
    path.chmod(0o600)
    own.forget_read()
    return path


def own_preset() -> own.OwnPreset:
    own.forget_read()
    (preset,) = own.every()
    return preset


def test_a_head_may_end_without_remarks() -> None:
    short = "-- preset: A\n-- roles: id=id status=s payload=b\n{}\n-- define: is_ready\ntrue\n"
    for end in ("--\n", "--\n\n", "", "\n", "--\n-- Read from its source.\n"):
        assert own_file.parse(short.format(end)).head["preset"] == "A"


def test_a_preset_file_becomes_a_design(file: Path) -> None:
    crate = own_preset()
    assert (crate.name, crate.path, crate.problem) == ("crate", file, "")
    assert crate.design_if_trusted is not None
    assert crate.design_if_trusted.verbs == ("requeue", "release", "maintain", "end-session")
    assert crate.design_if_trusted.states == ("ready", "claimed", "error")
    assert crate.design_if_trusted.found_by["columns"] == sorted(
        ["id", "state", "body", "problem", "taken_at", "who", "lane"]
    )
    assert crate.parsed is not None
    assert crate.parsed.sets["release"]["who"] == "concat(m.who,\n    ', given up')"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("1); DELETE FROM crates; --", "closes a bracket ')' that it has not opened"),
        ("m.state = 'new'; DELETE FROM crates", "a semicolon"),
        ("true -- and then", "a comment"),
        ("true /* and then", "a comment"),
        ("true */", "the end of a comment"),
        ("(true", "opens a bracket '(' and does not close it"),
        ("true) OR (true", "closes a bracket ')'"),
        ("m.x[1) = 1", "closes a bracket ')'"),
        (r"m.state = E'\' OR '", "a prefix before '"),
        ("m.state = U&'x'", "a prefix before '"),
        (r"m.state = '\'", "a backslash before a quote"),
        ("m.state = $$new$$", "a dollar"),
        ("m.state = 'new", "a literal that does not end"),
        ('m."state = 1', "a quoted name that does not end"),
        ("m.state::text = 'new'", "a colon: write CAST"),
        ("m.id = :id", "a colon"),
        ("{at_locations}", "{at_locations}, which the file does not define"),
        ("{is_ready}", "it uses itself"),
        ("m.state = '{queue}'", "{queue} between quotes"),
        ("-- when role id\ntrue\n-- end", "conditions (-- when)"),
        ("true -- when role id", "conditions (-- when)"),
        ("", "there is nothing in it"),
        ("true\n\n-- name: make_ready\n-- x\nDELETE FROM crates", "a statement (-- name:)"),
        ("true\n\n-- define: at_locations\ntrue", "cannot define 'at_locations'"),
        ("true\n\n-- define: part\ntrue", "cannot define 'part'"),
        ("true\n\n-- define: queue_column\ntrue", "cannot define 'queue_column'"),
        ("true\n\n-- define: pop_order\ntrue", "cannot define 'pop_order'"),
        ("m.state = 'a\nb'", "a line break between quotes"),
        ("true\n\n-- define: is_ready\ntrue", "defines 'is_ready' twice"),
        ("true\n\n-- define: done_at\nnow()", "done_at: it needs a column too"),
    ],
)
def test_an_expression_cannot_escape_its_brackets(text: str, why: str) -> None:
    with pytest.raises(own_file.NotAPresetError) as error:
        own_file.parse(ready_if(text))
    assert why in str(error.value)


@pytest.mark.parametrize(
    ("line", "other", "why"),
    [
        ("-- table: crates", "-- tabel: crates", "no key 'tabel'"),
        ("-- table: crates", "-- verbs: requeue", "no key 'verbs'"),
        ("-- table: crates", "DROP TABLE crates;", "is not `-- key: text`"),
        (" payload=body", "", "lacks payload"),
        ("status=state", "state=state", "'state=state' is not role=column"),
        ("id=id", 'id=a"b', "is not role=column"),
        ("-- queue: lane", '-- queue: a"; DROP', "is not the name of a column"),
        ("error=problem ", "", "requeue: it needs error"),
        ("m.state = 'failed'\n", "m.state = 'failed'\n\n-- define: Mine\ntrue\n", "'Mine'"),
        ("problem = NULL", "state = 'old'", "one per column"),
        ("problem = NULL", "NULL", "is not a line `column = expression`"),
        ("problem = NULL", "problem = NULL), x = (1", "closes a bracket"),
        ("-- preset: Crate 2", "-- preset: Crate 2\n-- engine: mssql", ""),
    ],
)
def test_invalid_heads_and_sets_are_reported(line: str, other: str, why: str, file: Path) -> None:
    assert line in PRESET
    file.write_text(PRESET.replace(line, other))
    found = own_preset()
    assert found.design is None
    assert (why or "adopt such a table with the design") in found.problem


def test_a_file_that_others_could_write_is_refused(file: Path) -> None:
    for mode in (0o666, 0o620, 0o602):
        file.chmod(mode)
        preset = own_preset()
        assert preset.design is None
        assert preset.problem == (
            f"others may write it (its mode is {mode:04o}): chmod go-w {file}"
        )
        with pytest.raises(RefusedError, match="chmod go-w"):
            preset.require()
    file.chmod(0o600)
    file.parent.chmod(0o777)
    assert f"others may write its folder (its mode is 0777): chmod go-w {file.parent}" in (
        own_preset().problem
    )
    file.parent.chmod(0o700)
    assert not own_preset().problem
    if os.geteuid() == 0:
        os.chown(file, 12345, 0)
        assert "it belongs to another user (uid 12345)" in own_preset().problem


def test_a_file_is_trusted_only_until_it_changes(file: Path) -> None:
    assert (own_preset().untrusted, own.trust_list_path()) == (
        "You have not trusted it",
        file.parents[1] / "trusted-presets",
    )
    design = own_preset().design
    assert design is not None
    assert (design.verbs, design.trusted) == ((), False)
    assert all("preset trust" in why for why in design.refusals.values())
    own.trust(own_preset())
    design = own_preset().design
    assert design is not None
    assert (design.trusted, design.verbs[:2]) == (True, ("requeue", "release"))
    path = own.trust_list_path()
    assert path is not None
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)
    assert f"chmod 600 {path}" in own_preset().untrusted
    with pytest.raises(RefusedError, match="chmod 600"):
        own.trust(own_preset())
    path.chmod(0o600)
    file.write_text(PRESET + "\n")
    assert own_preset().untrusted == "It has changed since you trusted it"
    own.distrust(file)
    assert (own_preset().untrusted, path.read_text()) == ("You have not trusted it", "")


@pytest.mark.usefixtures("file")
def test_own_presets_are_refused_on_sql_server_without_connecting() -> None:
    """What, why, and what to do instead; there is no server at that address."""
    crate = own_preset()
    database = open_database("mssql+pyodbc://nobody:x@127.0.0.1:1/nothing")
    attempts: list[Callable[[], object]] = [
        lambda: discovery.preset("crate", "mssql"),
        lambda: check(database, crate),
        lambda: adopt.adopt_library(database, crate.require(), "crates"),
    ]
    for attempt in attempts:
        with pytest.raises(UsageError) as raised:
            attempt()
        error = raised.value
        assert error.what == "There is no preset 'crate' for mssql."
        assert error.why == "Your own presets can only be for postgresql."
        assert "dbq-console adopt TABLE --design D --map" in error.next_step
    assert "crate" not in presets("mssql")


def test_a_preset_name_belongs_to_one_file(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    team = tmp_path / "team"
    team.mkdir()
    (team / "crate.sql").write_text(PRESET)
    (team / "river.sql").write_text(PRESET)
    (team / "box.sql").write_text(PRESET)
    (team / "my box.sql").write_text(PRESET)
    (team / "notes.txt").write_text("no preset")
    monkeypatch.setenv(own.VARIABLE, f"{tmp_path / 'nowhere'}{os.pathsep}{team}")
    own.forget_read()
    found = {preset.path: preset.problem for preset in own.every()}
    assert not found[file]
    assert not found[team / "box.sql"]
    assert found[team / "crate.sql"] == f"there is another one with that name: {file}"
    assert "the console has its own 'river'" in found[team / "river.sql"]
    assert "its name is that of its file" in found[team / "my box.sql"]
    assert len(found) == 5
    assert set(own.usable()) == {"crate", "box"}


HEAD = """\
-- preset: crate 2
-- like: preset
-- summary: A table of crates.
-- advice: Adopt it
--   to see them.
-- columns: id state body
-- roles: id=id status=state payload=body
-- verbs: requeue
-- no purge: crate empties
--   itself
--
-- From its source.

-- define: is_ready
m.state = 0

-- define: is_done
m.state = 2

-- name: queues
-- their names
SELECT 'a'
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of an engine with a unique name, because what is read from files is cached."""
    engine = tmp_path / tmp_path.name
    engine.mkdir()
    monkeypatch.setattr(templates, "queries_folder", lambda: tmp_path)
    return engine


def test_the_head_of_a_shipped_file_becomes_the_design(folder: Path) -> None:
    (folder / "crate.sql").write_text(HEAD)
    (folder / "others.sql").write_text("-- What all have.\n")
    (crate,) = shipped.every()
    assert (crate.name, crate.library, crate.engines) == ("crate", "crate 2", (folder.name,))
    assert crate.advice == "Adopt it to see them."
    assert crate.states == ("ready", "done")
    assert crate.verbs == ("requeue", "maintain", "end-session")
    assert crate.refusals["purge"] == "crate empties itself"
    assert crate.refusals["push"].startswith("crate owns the table")
    assert crate.found_by["columns"] == ["id", "state", "body"]
    assert not crate.table_each


@pytest.mark.parametrize(
    ("line", "other"),
    [
        ("-- columns: id state body\n", ""),
        ("-- verbs: requeue\n", "-- verbs: requeue\n-- verb: release\n"),
        ("-- verbs: requeue\n", "-- verbs: requeue\nDROP TABLE x;\n"),
    ],
)
def test_an_invalid_head_fails_with_the_name_of_its_file(
    folder: Path, line: str, other: str
) -> None:
    (folder / "crate.sql").write_text(HEAD.replace(line, other))
    with pytest.raises(ValueError, match=r"crate\.sql"):
        shipped.every()
