"""The driver of a rollup is killed at random points; the next runs finish it."""

import json
import random
import signal
from collections import Counter
from itertools import cycle, islice
from pathlib import Path

import pytest

from console.features.history.segments import SAMPLES
from console.features.lake.lake import Lake
from tests.cli.calls import Answer
from tests.pipeline.archive_tools import drive
from tests.pipeline.driver import ROLLUP_PHASES
from tests.pipeline.recorded import all_rows, sample, write
from tests.pipeline.test_rollups import roll_up

pytestmark = pytest.mark.slow

PHASES = ("commit", "tables", "forecast", "clean", "begin")
LONG_KILLS = 20
"""All on Spark, and the last run; in the short tier one of each phase, the first on Spark."""
CONNECTIONS = ("one", "other")
DAY_SECONDS = 86_400
Rows = dict[str, Counter[str]]
"""Of each connection."""


def record(folder: Path, number: int) -> None:
    """Segments of two days, for each connection."""
    for connection in CONNECTIONS:
        for begin in (0, DAY_SECONDS):
            times = range(begin + 600 * number, begin + 600 * number + 300, 20)
            rows = [
                sample(at, ready=at % 97, push_per_second=float(at % 7), queue=queue)
                for at in times
                for queue in ("orders", "mail")
            ]
            write(folder, SAMPLES, *rows, connection=connection)


def run(folder: Path, lake: Lake, *words: str, on_spark: bool) -> Answer:
    return drive(str(folder), lake, *words, "--rollup", *["--spark"] * on_spark)


def rows_of(lake: Lake) -> Rows:
    found: Rows = {connection: Counter() for connection in CONNECTIONS}
    for (connection, *key), rows in all_rows(lake).items():
        found[connection].update(f"{key} {row}" for row in rows)
    return found


def test_a_rollup_killed_anywhere_is_finished_by_the_next(
    java_folder: Path, tmp_path: Path, long: bool
) -> None:
    pytest.importorskip("pyspark", reason="needs Spark: pip install 'dbq-console[pipeline]'")
    folder, lake = tmp_path / "recordings", Lake(tmp_path / "lake")
    rng, kills = random.Random("rollup"), LONG_KILLS if long else len(PHASES)
    record(folder, 0)
    counted = run(folder, lake, on_spark=long)
    assert counted.status == 0, counted.err
    counts = json.loads(counted.text.splitlines()[-1])
    phases = islice(cycle(PHASES), kills)
    killed = 0
    for number, phase in enumerate(phases, start=1):
        record(folder, number)
        before, undisturbed = rows_of(lake), Lake(tmp_path / f"undisturbed {number}")
        roll_up(undisturbed, folder)
        step = str(rng.randint(1, counts[phase]))
        ended = run(folder, lake, phase, step, on_spark=long or number == 1)
        assert ended.status in {0, -signal.SIGKILL}, ended.err
        killed += ended.status == -signal.SIGKILL
        for connection, rows in rows_of(lake).items():
            assert rows in (before[connection], rows_of(undisturbed)[connection]), phase
    assert killed, "none was killed"
    last = run(folder, lake, on_spark=long)
    assert last.status == 0, last.err
    print(f"{killed} kills in {kills} runs; steps of the phases: {counts}")
    assert rows_of(lake) == rows_of(undisturbed)
    assert set(counts) == set(ROLLUP_PHASES.values())
