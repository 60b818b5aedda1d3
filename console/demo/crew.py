"""Threads of a worker process that go on whatever the database does, until they are stopped."""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Sequence
from typing import Protocol

from sqlalchemy.exc import SQLAlchemyError

from console.engines import Database, Timeouts, open_database
from console.errors import ConsoleError

_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 5.0
_LEAVE_SECONDS = 3.0
_TIMEOUTS = Timeouts(connect_seconds=5, statement_seconds=10.0, lock_seconds=5.0)

_log = logging.getLogger(__name__)


class Member(Protocol):
    """What one thread does."""

    name: str

    def step(self) -> float:
        """Do a little and return how many seconds to wait; ConsoleError means: again, later."""

    def close(self) -> None:
        """Finish what is in hand, after the last step."""


def run_crew(members: Sequence[Member], stop: threading.Event) -> None:
    """Run each member in a thread of its own until stopped, then wait until all have finished."""
    threads = [
        threading.Thread(target=_keep_on, args=(member, stop), name=member.name, daemon=True)
        for member in members
    ]
    for thread in threads:
        thread.start()
    stop.wait()
    deadline = time.monotonic() + _LEAVE_SECONDS
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


def open_for(url: str, application_name: str) -> Database:
    """The database, for one thread: its sessions carry this name."""
    return open_database(url, timeouts=_TIMEOUTS, application_name=application_name)


def say(word: str) -> None:
    """Tell the process that started this one, which may be gone."""
    with contextlib.suppress(OSError):
        os.write(1, f"{word}\n".encode())


def _keep_on(member: Member, stop: threading.Event) -> None:
    told = ""
    trouble_pause = _FIRST_PAUSE_SECONDS
    while not stop.is_set():
        try:
            pause = member.step()
        except (ConsoleError, SQLAlchemyError) as error:
            if str(error) != told:  # an hour of the same is one line of the log
                told = str(error)
                _log.warning("%s: %s", member.name, " ".join(told.split()))
            pause = trouble_pause
            trouble_pause = min(trouble_pause * 2, _LONGEST_PAUSE_SECONDS)
        else:
            told, trouble_pause = "", _FIRST_PAUSE_SECONDS
        stop.wait(pause)
    with contextlib.suppress(ConsoleError, SQLAlchemyError):
        member.close()
