"""The demo's worker processes, `python -m console.features.demo.worker ROLE`, with the faults that
need sessions of their own: failures, a forgotten transaction, a kill.

The first line of the input is the settings as JSON; a worker ends at the end of its input.
"""

import contextlib
import io
import itertools
import json
import logging
import math
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
from console.clock import sleep
from console.errors import ConsoleError
from console.features.demo import plan, traffic
from console.features.demo.child import Child
from console.features.demo.traffic import Worker, error_text, open_for, run_workers, send_line

_NEVER = 3600.0
_HOLDS_WITHIN_SECONDS = 30.0
_POLL_SECONDS = 0.1


def _demo_queue(name: str) -> plan.DemoQueue:
    (demo_queue,) = (demo_queue for demo_queue in plan.DEMO_QUEUES if demo_queue.name == name)
    return demo_queue


class FailingConsumer:
    """Pops a message now and then and fails it: less and less often, then never."""

    def __init__(self, url: str, queue: str) -> None:
        self.name = f"{queue}-consumer-2"
        self._database = open_for(url, self.name)
        self._queue = _demo_queue(queue).queue(self._database.product)
        self._chance = random.Random(queue)  # noqa: S311 (a demo, no secret)
        self._made = 0
        self._pause = plan.ERROR_PAUSE_SECONDS
        self._began = False

    def step(self) -> float:
        if not self._began:
            self._began = True
            return plan.FIRST_ERROR_SECONDS
        if self._made >= plan.ERRORS_AT_MOST:
            return _NEVER
        # In one transaction, so that a fault leaves no claim behind.
        with self._database.transaction(f"fail messages of {self._queue.name!r}") as connection:
            messages = pop_many(connection, self._queue, 1, self.name)
            for message in messages:
                text = error_text(self._queue.name, message.id, self._chance)
                fail(connection, self._queue, message, text)
        if not messages:
            return _POLL_SECONDS
        self._made += 1
        self._pause = min(self._pause * plan.ERROR_PAUSE_GROWTH, plan.LONGEST_ERROR_PAUSE_SECONDS)
        return self._pause

    def close(self) -> None:
        self._database.close()


class ForgottenTransaction:
    """Pops rows of the fifo and leaves its transaction open for a while, again and again."""

    def __init__(self, url: str, stop: threading.Event) -> None:
        self.name = f"{plan.HELD_QUEUE}-report"
        self._database = open_for(url, self.name)
        self._queue = _demo_queue(plan.HELD_QUEUE).queue(self._database.product)
        self._stop = stop
        self._began = False

    def step(self) -> float:
        if not self._began:
            self._began = True
            return plan.HOLDING.first_seconds
        with self._database.transaction(f"report on {self._queue.name!r}") as connection:
            held = pop_many(connection, self._queue, plan.HELD_ROWS)
            if held:
                # It commits in the end, since the engine also counts deletes that are rolled back.
                self._stop.wait(plan.HOLDING.lasting_seconds)
        if not held:
            return _POLL_SECONDS
        return plan.HOLDING.every_seconds - plan.HOLDING.lasting_seconds

    def close(self) -> None:
        self._database.close()


class Killer:
    """Starts consumers that claim messages, and kills them; for each queue in turn."""

    def __init__(self, url: str, stop: threading.Event) -> None:
        self.name = "killer"
        self._url = url
        self._stop = stop
        self._queues = itertools.islice(
            itertools.cycle(plan.KILLED_QUEUES), plan.KILLED_AT_MOST * len(plan.KILLED_QUEUES)
        )

    def step(self) -> float:
        queue = next(self._queues, None)
        if queue is None:
            return _NEVER
        victim = Child("victim", {"url": self._url, "queue": queue}, None)
        try:
            victim.wait_for_line(_HOLDS_WITHIN_SECONDS, self._stop)
        finally:
            victim.kill()
        return plan.KILL_PAUSE_SECONDS

    def close(self) -> None:
        """Nothing: a victim never outlives a step."""


def run(settings: dict[str, str], stop: threading.Event) -> None:
    """`settings`: the database's `url`."""
    url = settings["url"]
    workers: list[Worker] = [Killer(url, stop), ForgottenTransaction(url, stop)]
    workers += [FailingConsumer(url, queue) for queue in plan.FAILING_QUEUES]
    run_workers(workers, stop)


def run_victim(settings: dict[str, str], stop: threading.Event) -> None:
    """Claim messages of a queue, report it, and wait to be killed."""
    name = f"{settings['queue']}-consumer-3"
    database = open_for(settings["url"], name)
    queue = _demo_queue(settings["queue"]).queue(database.product)
    missing = plan.CLAIMS_OF_KILLED
    while missing and not stop.is_set():
        with (
            contextlib.suppress(ConsoleError, SQLAlchemyError),
            database.transaction(f"pop from {queue.name!r}") as connection,
        ):
            missing -= len(pop_many(connection, queue, missing, name))
        sleep(_POLL_SECONDS if missing else 0.0, stop)
    send_line("holding")
    sleep(math.inf, stop)


ROLES: dict[str, Callable[[Any, threading.Event], None]] = {
    "traffic": traffic.run,
    "faults": run,
    "victim": run_victim,
}
"""Each runs until the event is set, then finishes its current work."""

_STOP_SECONDS = 4.0


def main() -> None:
    """Run one role until the parent closes the pipe or ends."""
    stop = threading.Event()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    logging.basicConfig(
        stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(process)d %(message)s"
    )
    # Unbuffered: a thread in a buffered read would keep the interpreter from ending.
    line = io.FileIO(0, closefd=False).readline()
    if not line:
        return
    threading.Thread(target=_stop_with_parent, args=(stop,), daemon=True).start()
    ROLES[sys.argv[1]](json.loads(line), stop)


def _stop_with_parent(stop: threading.Event) -> None:
    while not stop.is_set() and os.read(0, 1024):
        pass
    stop.set()
    time.sleep(_STOP_SECONDS)  # a thread may hang in a server that does not respond
    os._exit(1)


if __name__ == "__main__":
    main()
