"""Which ODBC driver the engine `mssql` chooses, and its error if there is none."""

import ctypes
import importlib
import platform
import sys
from pathlib import Path
from types import ModuleType

import pytest

from console.engines.mssql import odbc
from console.engines.mssql.odbc import Driver, Family, choose, load_pyodbc
from console.errors import ConnectionFailedError
from tests.unit.mssql_tools import SECRET, Error, Odbc, stand_in_for_pyodbc

DEBIAN = {"ID": "debian"}
UBUNTU = {"ID": "ubuntu", "ID_LIKE": "debian"}
ROCKY = {"ID": "rocky", "ID_LIKE": "rhel centos fedora"}
SUSE = {"ID": "opensuse-leap", "ID_LIKE": "suse opensuse"}


@pytest.fixture(autouse=True)
def no_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(odbc, "WHEEL", "no_such_wheel")


@pytest.fixture(autouse=True)
def debian(monkeypatch: pytest.MonkeyPatch) -> None:
    set_system(monkeypatch, DEBIAN)


def set_system(monkeypatch: pytest.MonkeyPatch, release: dict[str, str]) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: release)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")


def odbc_with(*installed: str) -> Odbc:
    odbc = Odbc()
    odbc.installed = list(installed)
    return odbc


def install_wheel(
    monkeypatch: pytest.MonkeyPatch, folder: Path, *, lacks: dict[str, str] | None = None
) -> None:
    """Microsoft's wheel with its folders; its files load unless they lack something."""
    monkeypatch.setattr(odbc, "WHEEL", "made_up_wheel")
    package = folder / "made_up_wheel"
    for flavour in ("debian_ubuntu", "rhel", "suse"):
        for machine in ("x86_64", "arm64"):
            lib = package / "libs" / "linux" / flavour / machine / "lib"
            lib.mkdir(parents=True)
            (lib / "libmsodbcsql-18.6.so.2.1").touch()
            (lib / "libodbcinst.so.2").touch()
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(folder)

    def load(path: str) -> None:
        for flavour, problem in (lacks or {}).items():
            if flavour in path:
                raise OSError(problem)

    monkeypatch.setattr(ctypes, "CDLL", load)


def refusal(odbc: Odbc, named: str = "") -> ConnectionFailedError:
    with pytest.raises(ConnectionFailedError) as refused:
        choose(named, odbc)
    assert refused.value.exit_status == 3
    return refused.value


def test_the_newest_microsoft_driver_is_preferred(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install_wheel(monkeypatch, tmp_path)
    odbc = odbc_with(
        "FreeTDS",
        "ODBC Driver 9 for SQL Server",
        "ODBC Driver 18 for SQL Server",
        "ODBC Driver 17 for SQL Server",
        "SQL Server",
    )
    assert choose("", odbc) == Driver("ODBC Driver 18 for SQL Server")


def test_a_driver_named_in_the_url_is_preferred_to_the_newest() -> None:
    odbc = odbc_with("ODBC Driver 18 for SQL Server", "ODBC Driver 17 for SQL Server", "FreeTDS")
    assert choose("odbc driver 17 for sql server", odbc).name == "ODBC Driver 17 for SQL Server"
    assert choose("FreeTDS", odbc).family is Family.FREETDS


def test_a_driver_may_be_named_by_the_path_of_its_library(tmp_path: Path) -> None:
    library = tmp_path / "libmsodbcsql-18.so"
    library.touch()
    assert choose(str(library), odbc_with()) == Driver(str(library))
    refusal(odbc_with(), str(tmp_path / "libother.so"))


def test_a_missing_driver_named_in_the_url_is_not_replaced() -> None:
    refused = refusal(odbc_with("FreeTDS"), "ODBC Driver 13 for SQL Server")
    assert "'ODBC Driver 13 for SQL Server'" in refused.what
    assert refused.why == "Installed: FreeTDS."


def test_a_driver_name_that_may_hold_a_password_is_not_repeated() -> None:
    refused = refusal(odbc_with(), f"FreeTDS;PWD={SECRET}")
    assert SECRET not in str(refused)


@pytest.mark.parametrize(
    ("release", "machine", "folder"),
    [
        (DEBIAN, "x86_64", "debian_ubuntu/x86_64"),
        (UBUNTU, "aarch64", "debian_ubuntu/arm64"),
        (ROCKY, "x86_64", "rhel/x86_64"),
        (SUSE, "x86_64", "suse/x86_64"),
        ({"ID": "plan9"}, "x86_64", "debian_ubuntu/x86_64"),
    ],
)
def test_the_wheels_driver_for_this_system_is_chosen(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    release: dict[str, str],
    machine: str,
    folder: str,
) -> None:
    install_wheel(monkeypatch, tmp_path)
    set_system(monkeypatch, release)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    chosen = choose("", odbc_with("FreeTDS"))
    assert f"/{folder}/" in chosen.name
    assert chosen.name.endswith("libmsodbcsql-18.6.so.2.1")
    assert chosen.family is Family.MICROSOFT


def test_another_systems_driver_is_chosen_if_this_systems_does_not_load(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install_wheel(monkeypatch, tmp_path, lacks={"debian_ubuntu": "libold.so.1: cannot open"})
    assert "/rhel/" in choose("", odbc_with()).name


def test_freetds_is_chosen_if_microsofts_driver_is_missing_or_does_not_load(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert choose("", odbc_with("SQLite3", "FreeTDS")) == Driver("FreeTDS")
    install_wheel(monkeypatch, tmp_path, lacks={"libs": "libkrb5.so.3: cannot open"})
    assert choose("", odbc_with("FreeTDS")) == Driver("FreeTDS")


def test_a_library_that_the_wheels_driver_lacks_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    problem = "libgssapi_krb5.so.2: cannot open shared object file: No such file or directory"
    install_wheel(monkeypatch, tmp_path, lacks={"libs": problem})
    refused = refusal(odbc_with("SQLite3"))
    assert problem in refused.why
    assert "apt-get install unixodbc libgssapi-krb5-2" in refused.next_step


@pytest.mark.parametrize(
    ("release", "advice"),
    [
        (DEBIAN, "apt-get install unixodbc tdsodbc"),
        (UBUNTU, "apt-get install unixodbc tdsodbc"),
        (ROCKY, "dnf install unixODBC freetds"),
        ({"ID": "alpine"}, "apk add unixodbc freetds"),
        (SUSE, ""),
        ({}, ""),
    ],
)
def test_without_a_driver_the_error_says_how_to_install_one(
    monkeypatch: pytest.MonkeyPatch, release: dict[str, str], advice: str
) -> None:
    set_system(monkeypatch, release)
    refused = refusal(odbc_with("SQLite3"))
    assert refused.why == "Installed: SQLite3."
    assert odbc.EXTRA in refused.next_step
    assert advice in refused.next_step


def test_without_a_driver_on_a_mac_the_error_suggests_homebrew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "brew install unixodbc freetds" in refusal(odbc_with()).next_step


def test_without_an_os_release_the_error_suggests_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing() -> dict[str, str]:
        raise OSError("no os-release")

    monkeypatch.setattr(platform, "freedesktop_os_release", missing)
    assert odbc.EXTRA in refusal(odbc_with()).next_step


def test_an_unreadable_list_of_drivers_counts_as_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> list[str]:
        raise Error("HY000", "[HY000] odbcinst.ini is not one (0)")

    odbc = odbc_with()
    monkeypatch.setattr(odbc, "drivers", broken)
    assert refusal(odbc).why == "Installed: none."


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("ODBC Driver 18 for SQL Server", Family.MICROSOFT),
        ("SQL Server Native Client 11.0", Family.MICROSOFT),
        ("/opt/microsoft/msodbcsql18/lib64/libmsodbcsql-18.3.so.1.1", Family.MICROSOFT),
        ("/usr/lib/x86_64-linux-gnu/odbc/libtdsodbc.so", Family.FREETDS),
        ("freetds", Family.FREETDS),
        ("/opt/freetds/libother.so", Family.OTHER),
        ("SQLite3", Family.OTHER),
    ],
)
def test_the_family_of_a_driver_follows_from_its_name(name: str, family: Family) -> None:
    assert Driver(name).family is family


def refused_import(monkeypatch: pytest.MonkeyPatch, error: ImportError) -> ConnectionFailedError:
    def fail(name: str) -> ModuleType:
        assert name == "pyodbc"
        raise error

    monkeypatch.setattr(importlib, "import_module", fail)
    with pytest.raises(ConnectionFailedError) as refused:
        load_pyodbc()
    assert refused.value.exit_status == 3
    return refused.value


def test_without_pyodbc_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = refused_import(monkeypatch, ModuleNotFoundError("No module named 'pyodbc'"))
    assert refused.next_step == "pip install 'dbq-console[mssql]'"


def test_without_a_driver_manager_the_systems_package_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = "libodbc.so.2: cannot open shared object file: No such file or directory"
    refused = refused_import(monkeypatch, ImportError(problem))
    assert problem in refused.why
    assert "apt-get install unixodbc" in refused.next_step


def test_the_pooling_of_pyodbc_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    odbc = stand_in_for_pyodbc(monkeypatch)
    loaded = load_pyodbc()
    assert (loaded, loaded.pooling) == (odbc, False)
