"""A copy of the package to which something is added, and the files that this takes."""

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from tests.tools.warm import Forked

ROOT = Path(__file__).resolve().parents[3]
OWN = Path(__file__).parent


@dataclass
class Copy:
    """The package and its SQL, in a folder of their own."""

    folder: Path
    touched: list[str] = field(default_factory=list)
    """Paths that were added or edited."""

    def __post_init__(self) -> None:
        for name in ("console", "queries"):
            # With bytecode and modification times: unedited files need not be compiled again.
            shutil.copytree(ROOT / name, self.folder / name)

    def add(self, source: Path, to: str, *replaced: tuple[str, str]) -> None:
        """Add a file of this folder, or a copy of one under another name."""
        text = source.read_text()
        for before, after in replaced:
            assert before in text, before
            text = text.replace(before, after)
        (self.folder / to).write_text(text)
        self.touched.append(to)

    def edit(self, path: str, *replaced: tuple[str, str]) -> None:
        """Replace texts that each occur once."""
        text = (self.folder / path).read_text()
        for before, after in replaced:
            assert text.count(before) == 1, (path, before)
            text = text.replace(before, after)
        (self.folder / path).write_text(text)
        self.touched.append(path)

    def use(self, module: str, *arguments: str) -> None:
        """Run one of the `use_*` with the copied package."""
        path = {"PYTHONPATH": os.pathsep.join(map(str, (self.folder, ROOT)))}
        words = [str(self.folder), f"tests.contract.adding.{module}", *arguments]
        run = "tests.contract.adding.run"
        with Forked(words, os.environ | path, module=run, warm="copy") as running:
            out, err = running.communicate(timeout=300)
        assert running.returncode == 0, (out + err).decode()
        print(f"{len(self.touched)} files:", *self.touched)  # pytest -rP shows it
