"""The main program of the demo's worker processes: `python -m console.demo.worker ROLE`. The faults
that have sessions of their own are here too: failures, a forgotten transaction, a kill.

The first line of its input is its settings as JSON; the input's end tells it to leave.
"""

import contextlib
import io
import itertools
import json
import logging
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from console.actions.pop import fail, pop_many
from console.demo import plan, traffic
from console.demo.child import Child
from console.demo.traffic import Member, error_text, open_for, run_threads, say
from console.errors import ConsoleError

_NEVER = 3600.0
_HOLDS_WITHIN_SECONDS = 30.0
_LOOK_AGAIN_SECONDS = 0.1


def _lane(name: str) -> plan.Lane:
    (lane,) = (lane for lane in plan.LANES if lane.name == name)
    return lane


class FailingConsumer:
    """Takes a message of its queue now and then and fails it: less and less often, then never."""

    def __init__(self, url: str, queue: str) -> None:
        self.name = f"{queue}-consumer-2"
        self._database = open_for(url, self.name)
        self._queue = _lane(queue).queue(self._database.product)
        self._chance = random.Random(queue)  # noqa: S311 (a demo, no secret)
        self._made = 0
        self._pause = plan.ERROR_PAUSE_SECONDS
        self._began = False

    def step(self) -> float:
        """Fail one message."""
        if not self._began:
            self._began = True
            return plan.FIRST_ERROR_SECONDS
        if self._made >= plan.ERRORS_AT_MOST:
            return _NEVER
        # One transaction: no fault of this one's may leave a claim behind.
        with self._database.transaction(f"fail messages of {self._queue.name!r}") as connection:
            messages = pop_many(connection, self._queue, 1, self.name)
            for message in messages:
                text = error_text(self._queue.name, message.id, self._chance)
                fail(connection, self._queue, message, text)
        if not messages:
            return _LOOK_AGAIN_SECONDS
        self._made += 1
        self._pause = min(self._pause * plan.ERROR_PAUSE_GROWTH, plan.LONGEST_ERROR_PAUSE_SECONDS)
        return self._pause

    def close(self) -> None:
        """Leave the server."""
        self._database.close()


class ForgottenTransaction:
    """Pops rows of the fifo and leaves its transaction open for a while, again and again."""

    def __init__(self, url: str, stop: threading.Event) -> None:
        self.name = f"{plan.HELD_QUEUE}-report"
        self._database = open_for(url, self.name)
        self._queue = _lane(plan.HELD_QUEUE).queue(self._database.product)
        self._stop = stop
        self._began = False

    def step(self) -> float:
        """Hold once."""
        if not self._began:
            self._began = True
            return plan.HOLDING.first_seconds
        with self._database.transaction(f"report on {self._queue.name!r}") as connection:
            held = pop_many(connection, self._queue, plan.HELD_ROWS)
            if held:
                # It commits in the end: the engine counts the deletes of a rollback as well.
                self._stop.wait(plan.HOLDING.lasting_seconds)
        if not held:
            return _LOOK_AGAIN_SECONDS
        return plan.HOLDING.every_seconds - plan.HOLDING.lasting_seconds

    def close(self) -> None:
        """Leave the server."""
        self._database.close()


class Killer:
    """Starts a consumer, lets it claim messages and kills it; a few times a queue, in turn."""

    def __init__(self, url: str, stop: threading.Event) -> None:
        self.name = "killer"
        self._url = url
        self._stop = stop
        self._queues = itertools.islice(
            itertools.cycle(plan.KILLED_QUEUES), plan.KILLED_AT_MOST * len(plan.KILLED_QUEUES)
        )

    def step(self) -> float:
        """One victim."""
        queue = next(self._queues, None)
        if queue is None:
            return _NEVER
        victim = Child("victim", {"url": self._url, "queue": queue}, None)
        try:
            victim.wait_for_word(_HOLDS_WITHIN_SECONDS, self._stop)
        finally:
            victim.kill()
        return plan.KILL_PAUSE_SECONDS

    def close(self) -> None:
        """Nothing: a victim never outlives a step."""


def run(settings: dict[str, str], stop: threading.Event) -> None:
    """Make trouble until stopped. `settings`: the database's `url`."""
    url = settings["url"]
    members: list[Member] = [Killer(url, stop), ForgottenTransaction(url, stop)]
    members += [FailingConsumer(url, queue) for queue in plan.FAILING_QUEUES]
    run_threads(members, stop)


def run_victim(settings: dict[str, str], stop: threading.Event) -> None:
    """Claim messages of a queue, say so, and wait for the end."""
    name = f"{settings['queue']}-consumer-3"
    database = open_for(settings["url"], name)
    queue = _lane(settings["queue"]).queue(database.product)
    wanted = plan.CLAIMS_OF_KILLED
    while wanted and not stop.is_set():
        with (
            contextlib.suppress(ConsoleError, SQLAlchemyError),
            database.transaction(f"pop from {queue.name!r}") as connection,
        ):
            wanted -= len(pop_many(connection, queue, wanted, name))
        stop.wait(_LOOK_AGAIN_SECONDS if wanted else 0)
    say("holding")
    stop.wait()


ROLES: dict[str, Callable[[Any, threading.Event], None]] = {
    "traffic": traffic.run,
    "faults": run,
    "victim": run_victim,
}
"""What a worker may be. Each runs until the event is set, then finishes what it has in hand."""

_LEAVE_SECONDS = 4.0


def main() -> None:
    """Run one role until the parent closes the pipe or is gone."""
    stop = threading.Event()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    logging.basicConfig(
        stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(process)d %(message)s"
    )
    # Unbuffered: a thread that waits in a buffered read would hold the interpreter's end up.
    line = io.FileIO(0, closefd=False).readline()
    if not line:
        return
    threading.Thread(target=_leave_with_parent, args=(stop,), daemon=True).start()
    ROLES[sys.argv[1]](json.loads(line), stop)


def _leave_with_parent(stop: threading.Event) -> None:
    while not stop.is_set() and os.read(0, 1024):
        pass
    stop.set()
    time.sleep(_LEAVE_SECONDS)  # a thread may hang in a server that does not answer
    os._exit(1)


if __name__ == "__main__":
    main()
