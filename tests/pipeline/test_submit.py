"""Jobs under spark-submit, as on a cluster: its master and its JVM, this Python."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from console.cli import __main__ as command
from console.errors import UsageError
from console.monitor.recording.segments import SAMPLES
from console.pipeline import java, runs, spark
from console.pipeline.runs import RunOutcome
from tests.pipeline.conftest import FAST
from tests.pipeline.recorded import BEGIN, sample, write

_ASKS = """
from console.pipeline.spark import session
with session("asks") as spark:
    context = spark.sparkContext
    print(context.master, spark.conf.get("spark.sql.shuffle.partitions"), context.uiWebUrl)
"""


def submit(folder: Path, file: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """A file on two cores."""
    import pyspark  # noqa: PLC0415  # the extra's

    home = Path(pyspark.__file__).parent
    settings = [part for name, value in FAST.items() for part in ("--conf", f"{name}={value}")]
    return subprocess.run(
        [str(home / "bin" / "spark-submit"), "--master", "local[2]", *settings, str(file), *words],
        env={
            **os.environ,
            "SPARK_HOME": str(home),
            "JAVA_HOME": str(java.java_home()),
            "PYSPARK_PYTHON": sys.executable,
            "XDG_STATE_HOME": str(folder / "state"),
        },
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def test_the_file_that_is_submitted_does_nothing_when_it_is_only_imported() -> None:
    line = "import console.cli.__main__ as m; print(m.__file__)"
    done = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()) == Path(str(command.__file__))


def test_two_masters_are_one_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    monkeypatch.setattr(spark, "require_extra", lambda: None)
    with pytest.raises(UsageError, match=r"set by spark-submit") as error:
        spark.start("x", "local[1]")
    assert "before the file" in error.value.next_step


@pytest.mark.long
@pytest.mark.usefixtures("java_folder")
def test_a_rollup_takes_the_master_of_spark_submit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asks = tmp_path / "asks.py"
    asks.write_text(_ASKS)
    asked = submit(tmp_path, asks)
    assert asked.stdout.split() == ["local[2]", "1", "None"], asked.stderr

    recordings, lake = tmp_path / "recordings", tmp_path / "lake"
    samples = [sample(seconds, ready=seconds) for seconds in range(0, 300, 10)]
    write(recordings, SAMPLES, *samples)
    words = ("--recordings", str(recordings), "--lake", str(lake), "--json")
    done = submit(tmp_path, Path(str(command.__file__)), "pipeline", "rollup", *words)
    assert done.returncode == 0, done.stderr
    # Spark's runner of Python puts what is narrated before it.
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["rows"] == {"samples": 30}
    assert answer["tables"] == {
        width: {"samples": rows} for width, rows in (("minute", 5), ("hour", 1), ("day", 1))
    }
    assert answer["days"] == {"prod": [str(BEGIN.date())]}

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (run,) = runs.read(runs.folder()).runs
    assert (run.outcome, run.rows, run.result) == (RunOutcome.DONE, 30, answer)
    wrong = submit(tmp_path, Path(str(command.__file__)), "pipeline", "verify")
    assert wrong.returncode == 2, "the exit status is the verb's"
