"""Packages that only some tests want, and that not every machine can get: fetched once a user."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.microsoft.fetch import caches
from tests.template import FOLDER, exclusive_access

NPM = ("graphile-worker@~0.18.0", "pg-boss@~12.38.0", "node@22")
NODE = "DBQ_TEST_NODE"
"""Where these are installed already: the folder that node_modules lies in."""


def from_pip(package: str, *more: str) -> Path:
    """The folder that has it; skips, with the reason, where pip does not get it."""
    python = "".join(map(str, sys.version_info[:2]))
    place = caches() / f"{package}-{python}"
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    options = ["--no-deps", "--no-compile", *more, "--target", str(place / "made")]
    return _fetched(place, [*pip, *options, package]) / "made"


def from_npm(library: str) -> Path:
    """The folder with all in its node_modules; skips, with the reason, where there are none."""
    if given := os.environ.get(NODE):
        if not (Path(given) / "node_modules" / library).is_dir():
            pytest.skip(f"{NODE} names a folder without {library}")
        return Path(given)
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip(f"{library} wants Node: npm is not here, and {NODE} names no folder")
    place = caches() / " ".join(NPM)
    return _fetched(
        place, [npm, "install", "--no-audit", "--no-fund", "--prefix", str(place), *NPM]
    )


def _fetched(place: Path, words: Sequence[str]) -> Path:
    """One process asks, once a run: what it was told is for all of them."""
    place.parent.mkdir(parents=True, exist_ok=True)
    done, why = place / "done", Path(os.environ[FOLDER]) / f"why not {place.name}"
    with exclusive_access(place):
        if not done.exists() and not why.exists():
            try:
                told = subprocess.run(
                    words, capture_output=True, text=True, timeout=120, check=False
                )
            except subprocess.TimeoutExpired:
                why.write_text("it had not ended after two minutes")
            else:
                (why if told.returncode else done).write_text(told.stderr.strip()[-300:])
    if not done.exists():
        pytest.skip(f"{place.name} cannot be installed: {why.read_text()}")
    return place
