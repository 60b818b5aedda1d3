"""The same on SQL Server, of which the text alone can be had: a design unlike the others.

No shared T-SQL file is edited, and what is rendered for it is what a design with the same tables
gets, which Microsoft's tools have read: `tests/microsoft`.
"""

from pathlib import Path

from tests.contract.adding.copied import Copy
from tests.contract.test_adding_postgresql import DESIGNS, add_design

QUERIES = "queries/mssql"


def test_a_design_unlike_the_others(tmp_path: Path) -> None:
    """It has the tables of `status`, but is not told to be like it."""
    copy = Copy(tmp_path)
    add_design(copy, "marked")
    copy.add(copy.folder / QUERIES / "status.sql", f"{QUERIES}/marked.sql")
    copy.use("use_tsql", "marked")
    assert copy.touched == ["console/designs/marked.py", DESIGNS, f"{QUERIES}/marked.sql"]
