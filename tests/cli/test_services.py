"""Services: the unit that is printed, and what systemd hears."""

import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from tests.cli.calls import Console, call
from tests.servers import wait_until

ANALYZE = shutil.which("systemd-analyze") or ""
NEEDS_SYSTEMD = pytest.mark.skipif(not ANALYZE, reason="there is no systemd-analyze")
WORDS = {
    "record": ("--group", "shop's", "--keep", "14d"),
    "serve-metrics": ("--profile", "shop", "--listen", "127.0.0.1:9465"),
}


@pytest.mark.parametrize("verb", WORDS)
def test_the_unit_runs_what_was_typed(verb: str) -> None:
    answer = call(verb, "--print-unit", *WORDS[verb])
    assert answer.status == 0
    (line,) = [one for one in answer.text.splitlines() if one.startswith("ExecStart=")]
    program, *words = line.removeprefix("ExecStart=").split(" ", 2)
    assert program.startswith("/")
    assert words[0] == verb
    assert words[1] == " ".join(WORDS[verb]).replace("shop's", '"shop\'s"')
    assert call(verb, "--print-unit", "--json", *WORDS[verb]).json["unit"].startswith("# ")


def test_a_unit_has_no_url() -> None:
    answer = call("record", "--print-unit", "--url", "postgresql://a:secret@db/x")
    assert answer.status == 2
    assert "names a profile" in answer.err
    assert "secret" not in answer.err


@NEEDS_SYSTEMD
@pytest.mark.parametrize("verb", WORDS)
def test_systemd_reads_the_unit_and_finds_it_hardened(verb: str, tmp_path: Path) -> None:
    unit = tmp_path / "dbq-console.service"
    unit.write_bytes(call(verb, "--print-unit", *WORDS[verb]).out)
    for words in (
        ("verify", "--man=no", str(unit)),
        ("security", "--offline=true", "--threshold=20", str(unit)),
    ):
        done = subprocess.run(
            [ANALYZE, *words], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "dbq-console.service:" not in done.stderr, done.stderr


def test_systemd_hears_that_a_recorder_is_ready_and_lives(
    console: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = tmp_path / "notify"
    monkeypatch.setenv("NOTIFY_SOCKET", str(address))
    monkeypatch.setenv("WATCHDOG_USEC", "300000")
    heard: list[bytes] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(address))
        systemd.setblocking(False)  # of the standard library

        def hears(what: bytes) -> bool:
            try:
                heard.append(systemd.recv(100))
            except BlockingIOError:
                return False
            return what in heard[-1]

        with console.process("record", "--recordings", str(tmp_path)) as running:
            wait_until(lambda: hears(b"READY=1"), "it is ready")
            for _ in range(2):
                wait_until(lambda: hears(b"WATCHDOG=1"), "it lives")
            running.terminate()
            running.communicate()
    assert running.returncode == 0
