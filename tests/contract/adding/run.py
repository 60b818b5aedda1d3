"""Runs one of the `use_*` with the copied package: FOLDER MODULE ARGUMENT..."""

import os
import runpy
import sys


def main() -> None:
    folder, module, *_ = sys.argv[1:]
    del sys.argv[1:3]
    os.chdir(folder)
    sys.path[:0] = os.environ["PYTHONPATH"].split(os.pathsep)
    import console  # noqa: PLC0415

    assert str(console.__file__).startswith(folder), console.__file__
    runpy.run_module(module, None, "__main__")
