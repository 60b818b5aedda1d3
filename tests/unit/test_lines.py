"""Lines are counted by kind, in a git revision as in the working tree."""

import subprocess
from pathlib import Path

import pytest

from tests.tools import lines
from tests.tools.lines import Lines

PYTHON = '''\
"""A module,

told in three lines."""
# why
import os  # code


class Some:
    one: int = 1
    """What it is."""

    def call(self) -> str:
        """Do."""
        # in a function
        return """a text

        of three lines"""
'''
SQL = """\
-- name: one
-- a row
SELECT 1, '--'  -- code

-- when order=strict
FROM "{queue}"
-- end
"""


def test_each_line_is_of_one_kind() -> None:
    counted = lines.count_python(PYTHON)
    assert counted.all == len(PYTHON.splitlines())
    assert (counted.code, counted.docstrings, counted.comments, counted.blanks) == (7, 5, 2, 3)
    assert lines.count_python("") == Lines(files=1)
    counted = lines.count_sql(SQL)  # conditions are comments
    assert (counted.code, counted.docstrings, counted.comments, counted.blanks) == (2, 0, 4, 1)
    assert counted.width == round((len("SELECT 1, '--'  -- code") + len('FROM "{queue}"')) / 2)


def test_a_git_revision_is_counted_like_the_working_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for path, text in (
        ("console/a/b/c.py", PYTHON),
        ("console/a/d.py", "x = 1\n"),
        ("queries/e.sql", SQL),
        ("tests/f.txt", "no line of ours\n"),
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    one_a, two_a = lines.count_python("x = 1\n"), lines.count_python(PYTHON)
    expected = {"console/a": one_a + two_a, "queries": lines.count_sql(SQL)}
    assert lines.by_package(lines.working_tree_files(tmp_path)) == expected
    monkeypatch.setattr(lines, "ROOT", tmp_path)
    for command in (
        ("init", "-q"),
        ("add", "."),
        ("-c", "user.name=x", "-c", "user.email=x@x", "commit", "-q", "-m", "one"),
    ):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True)  # noqa: S607
    assert lines.by_package(lines.revision_files("HEAD")) == expected
    (tmp_path / "console" / "a" / "d.py").unlink()
    lines.main(["HEAD", "HEAD~0"])
    *_, console, queries, tests = capsys.readouterr().out.splitlines()
    assert console.split() == ["console", "2", "18", "2", "18"]
    assert (queries.split()[1:], tests.split()[1:]) == (["1", "7"] * 2, ["0", "0"] * 2)
