"""The walk of a queue's name from the command line to the SQL and back: `tests/walks.py` counts."""

from tests.cli.calls import Console
from tests.cli.conftest import Install
from tests.walks import MOST, walked


def test_the_name_of_a_queue_passes_few_files_to_its_sql(
    console: Console, install: Install
) -> None:
    name = install("status")
    console.done("push", name, "-", "--lines", stdin=b"1\n2\n3\n")
    console.done("pop", name, "--count", "2", "--fail", "no route")
    with walked(name) as files:
        console.done("requeue", name, "--filter", "limit=1", "--yes", name)
    assert len(files) <= MOST, "\n".join(sorted(files))
