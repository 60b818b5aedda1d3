"""The package as its users get it: a wheel, an editable checkout, an isolated application.

Each is installed into an empty environment and runs a verb that reads `queries/`. Dependencies
come from the registry that pip is configured for, as for any user.
"""

import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
VERB = ("install", "ring", "orders", "--print", "--engine", "postgresql")


def run(*command: str | Path, folder: Path) -> str:
    """Standard output of a command that must succeed, outside the checkout."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "DBQ_"))}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def environment(folder: Path) -> Path:
    """A new empty virtual environment; the folder of its programs."""
    venv.create(folder, with_pip=True)
    return folder / "bin"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the checkout by pip; for users, pip isolates the build."""
    folder = tmp_path_factory.mktemp("wheel")
    build = ("wheel", "--no-deps", "--no-build-isolation", "-w", folder, ROOT)
    run(sys.executable, "-m", "pip", *build, folder=folder)
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_has_one_package_with_its_queries(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"console"}
    shipped = {name for name in names if name.startswith("console/queries/")}
    expected = {f"console/{path.relative_to(ROOT)}" for path in (ROOT / "queries").rglob("*.*")}
    assert shipped == expected
    assert expected
    data = [
        path for kind in ("tcss", "toml", "md") for path in (ROOT / "console").rglob(f"*.{kind}")
    ]
    assert {f"{path.relative_to(ROOT)}" for path in data} <= set(names)


@pytest.mark.long
def test_the_source_distribution_has_the_sources_of_the_wheel(tmp_path: Path) -> None:
    build = (sys.executable, "-m", "build", "--sdist", "--no-isolation", "-o", tmp_path, ROOT)
    run(*build, folder=tmp_path)
    (built,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(built) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for path in [*(ROOT / "console").rglob("*.md"), *(ROOT / "queries").rglob("*")]:
        assert path.is_dir() or f"{path.relative_to(ROOT)}" in names


@pytest.mark.long  # the isolated application shows the same
def test_a_wheel_runs_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    programs = environment(tmp_path / "environment")
    run(programs / "pip", "install", "--quiet", wheel, folder=tmp_path)
    sql = run(programs / "dbq-console", *VERB, folder=tmp_path)
    assert sql.startswith("-- dbq-console")
    assert '"orders_pop_seq"' in sql


@pytest.mark.long  # the suite itself runs in one
def test_an_editable_checkout_runs(tmp_path: Path) -> None:
    programs = environment(tmp_path / "environment")
    run(programs / "pip", "install", "--quiet", "-e", ROOT, folder=tmp_path)
    assert '"orders_pop_seq"' in run(programs / "dbq-console", *VERB, folder=tmp_path)


@pytest.mark.long
def test_an_isolated_application_runs(wheel: Path, tmp_path: Path) -> None:
    """As pipx does it: one environment for the program, only its command is in the user's path."""
    programs = environment(tmp_path / "applications" / "dbq-console")
    run(programs / "pip", "install", "--quiet", f"dbq-console @ {wheel.as_uri()}", folder=tmp_path)
    command = tmp_path / "bin" / "dbq-console"
    command.parent.mkdir()
    command.symlink_to(programs / "dbq-console")
    assert '"orders_pop_seq"' in run(command, *VERB, folder=tmp_path)


@pytest.mark.long  # it reads a gigabyte of packages
def test_all_extras_install_together(wheel: Path, tmp_path: Path) -> None:
    programs = environment(tmp_path / "environment")
    extras = f"dbq-console[demo,keyring,mssql,pipeline,bench,test] @ {wheel.as_uri()}"
    run(programs / "pip", "install", "--dry-run", "--quiet", extras, folder=tmp_path)
