"""Packages that only some tests need: installed once per user, if the machine can get them."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import make_url

from tests.contract.child_processes import foreign_process
from tests.contract.libraries import Tables
from tests.microsoft.fetch import caches
from tests.servers.postgresql import FOLDER, exclusive_access

NPM = ("graphile-worker@~0.18.0", "pg-boss@~12.38.0", "node@22")
NODE = "DBQ_TEST_NODE"
"""Names a folder with node_modules in which these are installed already."""


def from_pip(package: str, *more: str) -> Path:
    """The folder of the package; skips, with the reason, where pip cannot install it."""
    python = "".join(map(str, sys.version_info[:2]))
    folder = caches() / f"{package}-{python}"
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    options = ["--no-deps", "--no-compile", *more, "--target", str(folder / "made")]
    return _installed(folder, [*pip, *options, package]) / "made"


def install_of(package: Path, script: str) -> str:
    """What the package prints as its installation."""
    environment = {**os.environ, "PYTHONPATH": str(package)}
    words = [sys.executable, "-c", script]
    return subprocess.run(words, check=True, capture_output=True, text=True, env=environment).stdout


def from_npm(library: str, version: str = "") -> Path:
    """The folder with node_modules; skips, with the reason, where npm cannot install it. Another
    `version` than that of NPM has a folder of its own."""
    if (given := os.environ.get(NODE)) and not version:
        if not (Path(given) / "node_modules" / library).is_dir():
            pytest.skip(f"{NODE} names a folder without {library}")
        return Path(given)
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip(f"{library} needs Node: npm is not here, and {NODE} names no folder")
    packages = (f"{library}@{version}", NPM[-1]) if version else NPM
    folder = caches() / " ".join(packages)
    return _installed(
        folder, [npm, "install", "--no-audit", "--no-fund", "--prefix", str(folder), *packages]
    )


@dataclass(frozen=True)
class NodeTables(Tables):
    """Tables of a library for Node that is installed in a folder."""

    folder: Path

    @property
    def node(self) -> str:
        return str(self.folder / "node_modules" / "node" / "bin" / "node")

    @property
    def uri(self) -> str:
        return make_url(self.url).set(drivername="postgres").render_as_string(False)

    def process(
        self, script: str, **environment: str
    ) -> AbstractContextManager["subprocess.Popen[str]"]:
        """Run the script in a process, with the database in URL and the schema in SCHEMA."""
        words = [self.node, "--input-type=module", "--eval", script]
        more = {"URL": self.uri, "SCHEMA": self.schema, **environment}
        return foreign_process(words, more, self.folder)


def _installed(folder: Path, command: Sequence[str]) -> Path:
    """One process tries, once per run; the others use its result."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    done, why = folder / "done", Path(os.environ[FOLDER]) / f"why not {folder.name}"
    with exclusive_access(folder):
        if not done.exists() and not why.exists():
            try:
                result = subprocess.run(
                    command, capture_output=True, text=True, timeout=120, check=False
                )
            except subprocess.TimeoutExpired:
                why.write_text("it had not ended after two minutes")
            else:
                (why if result.returncode else done).write_text(result.stderr.strip()[-300:])
    if not done.exists():
        pytest.skip(f"{folder.name} cannot be installed: {why.read_text()}")
    return folder
