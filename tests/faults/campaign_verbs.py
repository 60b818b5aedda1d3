"""Random verbs on random queues."""

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
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
_RELEASES: Sequence[list[str]] = ([], ["--unknown"], ["--force", "--filter", "older=1s"])
_SIZES = [str(size) for size in range(50, 601)]
_SHAPES = ("fifo", "ring", "split")


class Operators:
    """Choose the next call, and log what calls push and pop."""

    def __init__(self, queues: Mapping[str, Queue], chance: random.Random, log: Path) -> None:
        self.queues = queues
        self.pick = chance.choice
        self._chance = chance
        self._log = log
        self._serial = 0

    def next(self) -> Order:
        """A random call; the same ones for the same seed."""
        rates = [rate for rate, _ in _VERBS.values()]
        ((_, order),) = self._chance.choices(list(_VERBS.values()), rates)
        return order(self)

    def queue(self, verb: str) -> Queue:
        """A random one that has the verb, but never DOOMED."""
        able = [
            queue
            for name, queue in self.queues.items()
            if verb in queue.design.verbs_with(queue.options) and name != DOOMED
        ]
        return self.pick(able or list(self.queues.values()))

    def name(self, verb: str = "push") -> str:
        return self.queue(verb).name

    def confirmed(self, verb: str, *more: str, on: str = "", seconds: float = 60.0) -> Order:
        name = on or self.name(verb)
        return Order([verb, name, *more, "--yes", name, "--json"], seconds)

    def some(self) -> list[str]:
        """A random limit, and how it is reached."""
        limit = str(self.pick([1, 3, 20, 100]))
        words = ["--filter", f"limit={limit}"] if self._chance.random() < 0.8 else []
        return words + self.pick([[], [], ["--batch", "1"], ["--batch", "7"], ["--canary"]])

    def push(self) -> Order:
        self._serial += 1
        text = payload("operator", self._serial)
        return Order(["push", self.name(), text, "--json"], payloads=[text])

    def pop(self) -> Order:
        queue = self.queue("pop")
        more = ["--complete"] if queue.finishes else []
        return Order(["pop", queue.name, "--count", self.pick(["1", "5", "30"]), *more, "--json"])

    def purge(self, *more: str) -> Order:
        """For good from DOOMED only."""
        if "--permanently" in more and DOOMED in self.queues:
            return self.confirmed("purge", *more, *self.some(), on=DOOMED)
        return self.confirmed("purge", *self.some(), "--reason", "a campaign")

    def requeue(self) -> Order:
        queue = self.queue("requeue")
        more = self.pick([[], ["--back"]]) if queue.design.name != "ring" else []
        return self.confirmed("requeue", *self.some(), *more, on=queue.name)

    def requeue_to(self) -> Order:
        name = self.name("requeue")
        others = [other for other in self.queues if other not in {name, DOOMED}]
        return self.confirmed("requeue", "--to", self.pick(others), *self.some(), on=name)

    def doctor(self) -> Order:
        return self.confirmed("doctor", *SOON, "--fix", on=self.pick(list(self.queues)))

    def scratch(self, verb: str, *words: str) -> Order:
        """On a queue that may be there."""
        name = f"scratch {self.pick([1, 2, 3])}"
        more = [name] if verb == "install" else [name, "--yes", name]
        return Order([verb, *words, *more, "--json"], may_be_wrong=True)

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
            kept = keeps_popped(self.queues[call.order.words[1]])
            if texts and not kept:
                self._write(Work(popped=texts), known=known)
            elif texts and known:
                self._write(Work(kept=texts), known=True)

    def _write(self, work: Work, *, known: bool) -> None:
        with self._log.open("a", encoding="utf-8") as log:
            for kind in (BEFORE, DONE) if known else (BEFORE,):
                log.write(json.dumps({"kind": kind, **asdict(work)}) + "\n")


def _read(verb: str, *words: str) -> Order:
    return Order([verb, *words, "--json"])


_VERBS: Mapping[str, tuple[int, Callable[[Operators], Order]]] = {
    "push": (6, Operators.push),
    "pop": (6, Operators.pop),
    "purge": (5, Operators.purge),
    "purge for good": (2, lambda by: by.purge("--permanently")),
    "restore": (5, lambda by: by.confirmed("restore", *by.some())),
    "requeue": (5, Operators.requeue),
    "requeue --to": (4, Operators.requeue_to),
    "release": (4, lambda by: by.confirmed("release", *by.pick(_RELEASES))),
    "archive": (4, lambda by: by.confirmed("archive", *by.some())),
    # Soon: all messages are drained at the end.
    "reschedule": (
        3,
        lambda by: by.confirmed("reschedule", "--in", by.pick(["0s", "1s", "5s"]), *by.some()),
    ),
    "relay": (4, lambda by: by.confirmed("relay")),
    "resize": (4, lambda by: by.confirmed("resize", by.pick(_SIZES), on=by.name("resize"))),
    "maintain": (3, lambda by: by.confirmed("maintain", seconds=SLOW_SECONDS)),
    "doctor --fix": (6, Operators.doctor),
    "upgrade": (2, lambda by: by.confirmed("upgrade")),
    "smoke": (1, lambda by: Order(["smoke", by.name("smoke"), "--json"], SLOW_SECONDS)),
    "install": (1, lambda by: by.scratch("install", by.pick(_SHAPES))),
    "uninstall": (1, lambda by: by.scratch("uninstall")),
    "status": (3, lambda by: _read("status", *by.pick([[], [by.name()]]))),
    "doctor": (3, lambda by: _read("doctor", *by.pick([[], [by.name()]]), *SOON)),
    "check": (2, lambda _: _read("check", "--max-depth", "100")),
    "messages": (3, lambda by: _read("messages", by.name(), "--payload", "--limit", "30")),
    "errors": (1, lambda by: _read("errors", by.name("requeue"))),
    "history": (1, lambda by: _read("history", by.name())),
    "audit": (1, lambda _: _read("audit")),
    "report": (1, lambda by: _read("report", by.name(), *SOON)),
    "waits": (1, lambda by: _read("waits", by.name(), "--seconds", "1")),
    "consumers": (1, lambda by: _read("consumers", by.name(), "--seconds", "1")),
}
"""Relative frequencies, and how the call is made."""
