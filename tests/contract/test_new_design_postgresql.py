"""A design is added as README says: its value, its line in the list, one file of SQL.

In a copy of the package, which is changed in no other place.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OWN = Path(__file__).parent / "new_design"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The package with the design in it."""
    for folder in ("console", "queries"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    shutil.copy(OWN / "lanes.py", tmp_path / "console" / "designs")
    shutil.copy(OWN / "lanes.sql", tmp_path / "queries" / "postgresql")
    listed = tmp_path / "console" / "designs" / "__init__.py"
    text = listed.read_text()
    for before, after in (
        ("from console.designs import broker, ", "from console.designs import broker, lanes, "),
        ("        broker.BROKER,\n", "        broker.BROKER,\n        lanes.LANES,\n"),
    ):
        assert text.count(before) == 1
        text = text.replace(before, after)
    listed.write_text(text)
    return tmp_path


def test_a_design_is_added_and_every_verb_works_on_it(checkout: Path, database_url: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.contract.new_design.used", database_url],
        cwd=checkout,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (checkout, ROOT)))},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.stdout == "every verb\n", done.stdout + done.stderr
