"""Random verbs on random queues."""

import json
import random
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from console.catalog import Queue
from tests.faults.campaign_balance import DOOMED, keeps_popped
from tests.faults.campaign_calls import Call, Order
from tests.faults.harness.client import BEFORE, DONE, Work, payload

_PAYLOAD = re.compile(r"[\w.-]+/\d+/x*/")
"""A payload in the output of pop."""
_NO_LONGER_OURS = b"no longer ours"
SLOW_SECONDS, SPARK_SECONDS = 120.0, 300.0
SOON = ("--idle-for", "1s")
"""A short interval between the doctor's two samples."""
_RATES = {
    "push": 6,
    "pop": 6,
    "purge": 5,
    "restore": 5,
    "requeue": 5,
    "requeue --to": 4,
    "release": 4,
    "archive": 4,
    "reschedule": 3,
    "relay": 4,
    "resize": 4,
    "maintain": 3,
    "doctor --fix": 6,
    "upgrade": 2,
    "smoke": 1,
    "install": 1,
    "uninstall": 1,
    "purge --permanently": 2,
    "status": 3,
    "doctor": 3,
    "check": 2,
    "messages": 3,
    "errors": 1,
    "history": 1,
    "audit": 1,
    "report": 1,
    "waits": 1,
    "consumers": 1,
}
"""Relative frequencies."""


class Operators:
    """Choose the next call, and log what calls push and pop."""

    def __init__(self, queues: Mapping[str, Queue], chance: random.Random, log: Path) -> None:
        self._queues = queues
        self._chance = chance
        self._log = log
        self._serial = 0

    def next(self) -> Order:
        """A random call; the same ones for the same seed."""
        verb = self._chance.choices(list(_RATES), list(_RATES.values()))[0]
        make = getattr(self, "_" + re.sub(r"\W+", "_", verb), None)
        order: Order = self._read_only(verb) if make is None else make()
        return order

    def _random_queue(self, verb: str) -> Queue:
        """A queue that has the verb, but never DOOMED."""
        able = [
            queue
            for name, queue in self._queues.items()
            if verb in queue.design.verbs_with(queue.options) and name != DOOMED
        ]
        return self._chance.choice(able or list(self._queues.values()))

    def _confirmed(
        self, verb: str, *more: str, seconds: float = 60.0, queue: Queue | None = None
    ) -> Order:
        name = (queue or self._random_queue(verb)).name
        return Order([verb, name, *more, "--yes", name, "--json"], seconds)

    def _random_limit(self) -> list[str]:
        limit = str(self._chance.choice([1, 3, 20, 100]))
        words = ["--filter", f"limit={limit}"] if self._chance.random() < 0.8 else []
        words += self._chance.choice([[], [], ["--batch", "1"], ["--batch", "7"], ["--canary"]])
        return words

    def _read_only(self, verb: str) -> Order:
        name = self._random_queue("push").name
        words = {
            "status": self._chance.choice([[], [name]]),
            "doctor": [*self._chance.choice([[], [name]]), *SOON],
            "check": ["--max-depth", "100"],
            "messages": [name, "--payload", "--limit", "30"],
            "errors": [self._random_queue("requeue").name],
            "history": [name],
            "report": [name, *SOON],
            "waits": [name, "--seconds", "1"],
            "consumers": [name, "--seconds", "1"],
        }
        return Order([verb, *words.get(verb, []), "--json"])

    def _push(self) -> Order:
        self._serial += 1
        text = payload("operator", self._serial)
        return Order(["push", self._random_queue("push").name, text, "--json"], payloads=[text])

    def _pop(self) -> Order:
        queue = self._random_queue("pop")
        more = ["--complete"] if queue.finishes else []
        count = str(self._chance.choice([1, 5, 30]))
        return Order(["pop", queue.name, "--count", count, *more, "--json"])

    def _purge(self) -> Order:
        return self._confirmed("purge", *self._random_limit(), "--reason", "a campaign")

    def _purge_permanently(self) -> Order:
        if DOOMED not in self._queues:
            return self._purge()
        words = ["purge", DOOMED, "--permanently", *self._random_limit(), "--yes", DOOMED, "--json"]
        return Order(words)

    def _restore(self) -> Order:
        return self._confirmed("restore", *self._random_limit())

    def _requeue(self) -> Order:
        queue = self._random_queue("requeue")
        has_back = queue.design.name != "ring"
        more = ["--back"] if has_back and self._chance.random() < 0.5 else []
        return self._confirmed("requeue", *self._random_limit(), *more, queue=queue)

    def _requeue_to(self) -> Order:
        queue = self._random_queue("requeue")
        to = self._random_queue("push")
        while to.name == queue.name:
            to = self._random_queue("push")
        return self._confirmed("requeue", "--to", to.name, *self._random_limit(), queue=queue)

    def _release(self) -> Order:
        how = self._chance.choice([[], ["--unknown"], ["--force", "--filter", "older=1s"]])
        return self._confirmed("release", *how)

    def _archive(self) -> Order:
        return self._confirmed("archive", *self._random_limit())

    def _reschedule(self) -> Order:
        """Soon: all messages are drained at the end."""
        soon = self._chance.choice(["0s", "1s", "5s"])
        return self._confirmed("reschedule", "--in", soon, *self._random_limit())

    def _relay(self) -> Order:
        return self._confirmed("relay")

    def _resize(self) -> Order:
        name = self._random_queue("resize").name
        size = str(self._chance.randint(50, 600))
        return Order(["resize", name, size, "--yes", name, "--json"])

    def _maintain(self) -> Order:
        return self._confirmed("maintain", seconds=SLOW_SECONDS)

    def _upgrade(self) -> Order:
        return self._confirmed("upgrade")

    def _doctor_fix(self) -> Order:
        name = self._chance.choice(list(self._queues))
        return Order(["doctor", name, *SOON, "--fix", "--yes", name, "--json"])

    def _smoke(self) -> Order:
        return Order(["smoke", self._random_queue("smoke").name, "--json"], SLOW_SECONDS)

    def _install(self) -> Order:
        name = f"scratch {self._chance.randint(1, 3)}"
        design = self._chance.choice(["fifo", "ring", "split"])
        return Order(["install", design, name, "--json"], may_be_wrong=True)

    def _uninstall(self) -> Order:
        name = f"scratch {self._chance.randint(1, 3)}"
        return Order(["uninstall", name, "--yes", name, "--json"], may_be_wrong=True)

    def record(self, call: Call, out: bytes) -> None:
        """Record what the call pushed or popped, or may have."""
        if call.order.verb == "push":
            stored = call.status == 0
            if not call.killed and call.status in {1, 2, 4}:
                return
            self._write(Work(pushed=list(call.order.payloads)), known=stored and not call.killed)
        elif call.order.verb == "pop":
            # They are printed before the commit: a message that was not printed is not in doubt.
            texts = _PAYLOAD.findall(out.decode(errors="replace"))
            known = call.status == 0 and not call.killed and _NO_LONGER_OURS not in call.stderr
            kept = keeps_popped(self._queues[call.order.words[1]])
            if texts and not kept:
                self._write(Work(popped=texts), known=known)
            elif texts and known:
                self._write(Work(kept=texts), known=True)

    def _write(self, work: Work, *, known: bool) -> None:
        with self._log.open("a", encoding="utf-8") as log:
            for kind in (BEFORE, DONE) if known else (BEFORE,):
                log.write(json.dumps({"kind": kind, **asdict(work)}) + "\n")
