"""Commands that run until they are stopped, as services: what systemd hears, and their unit."""

import math
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Event

import click

from console.cli.context import WORDS, Call
from console.clock import sleep
from console.errors import UsageError
from console.verbs.index import PROGRAM
from console.verbs.parameters import Parameter

PRINT_UNIT = Parameter(
    "print-unit",
    "Print a unit for systemd that runs this with these options, and exit (dbq-console help "
    "running).",
    is_flag=True,
)
_BEAT = 3
"""Signs of life within the time after which systemd would restart it."""


def run_until(stop: Event, healthy: Callable[[], bool] = lambda: True) -> None:
    """Wait for `stop`. Where systemd started it, tell that it is ready, and as long as it is
    healthy, that it lives."""
    from systemd_watchdog import WatchDog  # noqa: PLC0415  # a verb imports what it uses

    systemd = WatchDog()
    systemd.ready()
    pause = systemd.timeout_td.total_seconds() / _BEAT if systemd.is_enabled else math.inf
    while not sleep(pause, stop):
        if healthy():
            systemd.notify()


def unit(call: Call, verb: str, does: str) -> str:
    """A unit that runs the verb with the words of this call. `does`: the service's description.
    UsageError: the call has a URL."""
    if call.command_line.url:
        raise UsageError(
            "A unit names a profile, not a URL.",
            why="Every user of the machine can read a unit.",
            next_step="Put the URL into a profile, and give --profile or --group.",
        )
    profile = call.command_line.profile
    given = click.get_current_context().meta[WORDS]
    words = [word for word in given if word != f"--{PRINT_UNIT.name}"]
    if profile and "--profile" not in words and f"--profile={profile}" not in words:
        words += ["--profile", profile]
    program = _program()
    home = any(program[0].startswith(f"{folder}/") for folder in ("/home", "/root", "/run/user"))
    line = " ".join(map(_quoted, (*program, verb, *words)))
    return _UNIT.format(does=does, line=line, home="read-only" if home else "yes")


def _program() -> list[str]:
    """The command of this environment, else its interpreter with the module."""
    beside = Path(sys.executable).with_name(PROGRAM)
    found = str(beside) if beside.exists() else shutil.which(PROGRAM)
    return [sys.executable, "-P", "-m", "console.cli"] if found is None else [found]


def _quoted(word: str) -> str:
    """As systemd reads it."""
    word = word.replace("%", "%%").replace("$", "$$")
    if word and not re.search(r"""[\s'"\\;]""", word):
        return word
    escaped = word.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


_UNIT = """\
# In a file such as /etc/systemd/system/dbq-console.service, then: systemctl enable --now
# dbq-console. The configuration may belong to root alone: the service gets a copy.
[Unit]
Description=dbq-console: {does}
Documentation=https://www.freedesktop.org/software/systemd/man/latest/systemd.exec.html
Wants=network-online.target
After=network-online.target

[Service]
Type=notify
WatchdogSec=5min
Restart=on-failure
RestartSec=5s
ExecStart={line}
DynamicUser=yes
StateDirectory=dbq-console
StateDirectoryMode=0700
LoadCredential=config.toml:/etc/dbq-console/config.toml
Environment=DBQ_CONFIG=%d/config.toml XDG_STATE_HOME=%S
# Passwords of PostgreSQL, as in ~/.pgpass:
#LoadCredential=pgpass:/etc/dbq-console/pgpass
#Environment=PGPASSFILE=%d/pgpass
UMask=0077
NoNewPrivileges=yes
CapabilityBoundingSet=
ProtectSystem=strict
ProtectHome={home}
PrivateTmp=yes
PrivateDevices=yes
PrivateUsers=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectProc=invisible
ProcSubset=pid
LockPersonality=yes
MemoryDenyWriteExecute=yes
RemoveIPC=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~@privileged @resources
SystemCallErrorNumber=EPERM

[Install]
WantedBy=multi-user.target
"""
