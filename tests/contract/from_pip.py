"""Packages that only some tests want, and that not every machine can get."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.template import FOLDER, alone_in


def from_pip(cache: Path, package: str, *more: str) -> Path:
    """The folder that has it; skips, with the reason, where pip does not get it."""
    place = cache / package
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    # One of the run's processes asks pip, once: what it was told is for all of them.
    told = Path(os.environ[FOLDER]) / package
    with alone_in(told):
        why = told / "why"
        if not place.is_dir() and not why.exists():
            words = [*pip, "--no-deps", "--no-compile", *more, "--target", str(place), package]
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            why.write_text(done.stderr[-300:])
    if not place.is_dir():
        pytest.skip(f"pip cannot install {package}: {why.read_text()}")
    return place
