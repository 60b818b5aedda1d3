"""What the head of a preset's file says becomes its design; a head that is none fails by name."""

from pathlib import Path

import pytest

from console.designs import libraries
from console.sql import templates

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
    """Of an engine whose name nothing else has, for what is read of files is kept."""
    engine = tmp_path / tmp_path.name
    engine.mkdir()
    monkeypatch.setattr(templates, "queries_folder", lambda: tmp_path)
    return engine


def test_a_head_is_the_design(folder: Path) -> None:
    (folder / "crate.sql").write_text(HEAD)
    (folder / "others.sql").write_text("-- What all have.\n")
    (crate,) = libraries.every()
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
def test_a_head_that_is_none_fails_by_name(folder: Path, line: str, other: str) -> None:
    (folder / "crate.sql").write_text(HEAD.replace(line, other))
    with pytest.raises(ValueError, match=r"crate\.sql"):
        libraries.every()
