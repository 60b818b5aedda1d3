"""A run of archive in a separate process, which kills itself at a given step.

`DBQ_URL=... python -m tests.pipeline.driver QUEUE LAKE [PHASE STEPS] [--spark | --copy]`: it kills
itself STEPS calls and returns of the pipeline's own functions after the phase began. Without a
phase it runs to its end, and prints how many of these steps each phase had. `--copy`: of a
library's finished jobs, which it prunes. `--rollup`, with `--spark` on it: of the folder of
recordings QUEUE.
"""

import json
import os
import resource
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from console import catalog
from console.engines import open_database
from console.features.lake.archive import copy, job, prune
from console.features.lake.archive.plan import ArchiveRequest
from console.features.lake.lake import Lake
from console.features.lake.spark import SparkTasks, Tasks, session
from tests.tools.local_tasks import LocalTasks

MOST_BYTES = "DBQ_TEST_MOST_BYTES"
"""Names the most bytes that a file of this process may have."""
SIZES = job.Sizes(plan=200, part=40, batch=7)
PHASES = {
    "_in_charge": "begin",
    "_reserve": "reserve",
    "_compare": "compare",
    "_export": "export",
    "_verify": "verify",
    "_commit": "commit",
    "_delete": "delete",
}
COPY_PHASES = {
    "_until": "begin",
    "copy_rows": "export",
    "_verify": "verify",
    "_commit": "commit",
    "prune": "prune",
    "_delete": "delete",
}
ROLLUP_PHASES = {
    "names": "begin",
    "_roll_up": "tables",
    "_commit": "commit",
    "update": "forecast",
    "vacuum": "clean",
}
_FILES = ("job.py", "copy.py", "prune.py", "forecast.py", "segment_files.py", "delta.py")
_OURS = str(Path("console", "features", "lake")) + os.sep


class StepCounter:
    """Counts calls and returns in the pipeline, and kills the process at the given step."""

    def __init__(self, phases: dict[str, str], phase: str, steps: int) -> None:
        self.counts = dict.fromkeys(phases.values(), 0)
        self._phases = phases
        self._phase = phase
        self._steps = steps
        self._now = ""

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if _OURS not in code.co_filename:
            return
        if event == "call" and Path(code.co_filename).name in _FILES:
            self._now = self._phases.get(code.co_name, self._now)
        if self._now:
            self.counts[self._now] += 1
            if self._now == self._phase and self.counts[self._now] >= self._steps:
                os.kill(os.getpid(), signal.SIGKILL)


def roll_up(folder: str, lake: Lake, counter: StepCounter) -> None:
    from console.features.lake.rollup import job as rollup  # noqa: PLC0415
    from tests.pipeline.conftest import FAST  # noqa: PLC0415

    @contextmanager
    def started() -> Iterator[Tasks]:
        if "--spark" not in sys.argv:
            yield LocalTasks()
            return
        with session("killed", "local[2]", FAST) as spark:
            yield SparkTasks(spark.sparkContext)

    sys.setprofile(counter)
    try:
        rollup.rollup(started, lake, [folder])
    finally:
        sys.setprofile(None)
    print(json.dumps(counter.counts))


def main() -> None:
    # Once the process has begun, so that it writes nothing else.
    if most := int(os.environ.get(MOST_BYTES, "0")):
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    words = [word for word in sys.argv[1:] if not word.startswith("--")]
    name, location, phase, steps = [*words, "", "0"][:4]
    if "--rollup" in sys.argv:
        roll_up(name, Lake(location), StepCounter(ROLLUP_PHASES, phase, int(steps)))
        return
    copies = "--copy" in sys.argv
    database = open_database(os.environ["DBQ_URL"])  # others may see command lines
    with database.transaction("read the catalog", read_only=True) as connection:
        queue = catalog.find(connection, name)
    lake = Lake(location)
    counter = StepCounter(COPY_PHASES if copies else PHASES, phase, int(steps))
    if copies:
        prune.ROUND_ROWS, prune.BATCH = 20, 3
        jobs = copy.find(database, queue, lake, older=0.0)
    else:
        offered = job.find(database, queue, lake, ArchiveRequest(retention=0.0))

    def run(tasks: Tasks) -> None:
        threading.setprofile(counter)
        sys.setprofile(counter)
        try:
            if copies:
                copy.copy(database, jobs, lake, tasks)
            else:
                job.archive(database, offered, lake, tasks, sizes=SIZES)
        finally:
            sys.setprofile(None)

    if "--spark" in sys.argv:
        from tests.pipeline.conftest import FAST  # noqa: PLC0415

        with session("killed", "local[2]", FAST) as spark:
            run(SparkTasks(spark.sparkContext))
    else:
        run(LocalTasks())
    print(json.dumps(counter.counts))


if __name__ == "__main__":
    main()
