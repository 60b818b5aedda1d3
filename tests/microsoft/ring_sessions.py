"""Sessions that run a ring's procedures, interleaved at random; some roll back or die. A statement
that would wait for another session's transaction fails.
"""

from collections import Counter
from collections.abc import Generator
from contextlib import suppress
from random import Random
from typing import Any

from console.designs import DESIGNS
from tests.contract.variants import Variant
from tests.faults.harness.model import finish
from tests.microsoft.interpreter import Call, ThrownError
from tests.microsoft.server import AttentionError, BusyError, Row, Server, Session
from tests.microsoft.trees import Node
from tests.microsoft.values import Steps

Trees = dict[str, Node]
NAMES = ("billing", "search", "audit")
RING_OPTIONS: dict[str, dict[str, str]] = {
    "plain": {},
    "archive": {"archive_at_pop": "on"},
    "apart": {"content": "apart", "partitions": "2", "archive_at_pop": "on"},
}
CUT = {"die", "attention"}
CONTENTS = {f"orders_content_{n}": ("content_id",) for n in range(2)}
KEYS = {
    "orders": ("slot",),
    "orders_config": ("only_row",),
    "orders_subscribers": ("subscriber",),
    "orders_popped": ("subscriber", "slot"),
    "orders_swept": ("only_row",),
    "orders_archive": ("id",),
    **CONTENTS,
}


def variant(kind: str, subscribers: int) -> Variant:
    named = {"subscribers": ",".join(NAMES)} if subscribers else {}
    return Variant(DESIGNS["ring"], {"size": "300", **named, **RING_OPTIONS[kind]})


def ring(chance: Random, size: int, subscribers: int) -> Server:
    """A ring as it is after its installation."""
    parked = ("subscriber", "void", "number") if subscribers else ("void", "number")
    server = Server({**KEYS, "orders_parked": parked}, chance)
    server.fill("orders_config", {"only_row": 1, "size": size, "base": 1})
    server.fill("orders_swept", {"only_row": 1, "number": 1})
    empty = {"message_id": None, "first_id": None, "message": None, "time": "then"}
    server.fill("orders", *({"slot": n, **empty, "reference_count": 0} for n in range(size)))
    server.sequences["orders_push_seq"] = 0
    if not subscribers:
        server.sequences["orders_pop_seq"] = 0
    for number, name in enumerate(NAMES[:subscribers], start=1):
        server.fill("orders_subscribers", {"subscriber": name, "number": number, "since_number": 1})
        rows = ({"subscriber": number, "slot": n, "message_id": 0, "time": 0} for n in range(size))
        server.fill("orders_popped", *rows)
        server.sequences[f"orders_pop_seq_{number}"] = 0
        server.sequences[f"orders_turn_seq_{number}"] = 0
    return server


class Run:
    """Sessions that push and pop, and what they committed."""

    def __init__(
        self, trees: Trees, seed: int, subscribers: int, *, fails_over: bool = False
    ) -> None:
        self._trees = trees
        self._fails_over = fails_over
        self.is_orderly = seed % 3 == 0 and not fails_over
        """All sessions commit and there is no relay, so no number is lost."""
        self.chance = Random(seed)
        self.names = NAMES[:subscribers] or ("",)
        self.server = ring(self.chance, self.chance.randint(1, 6), subscribers)
        self.server.caches = dict.fromkeys(self.server.sequences, 5)
        self.pushed: list[str] = []
        self.popped: dict[str, list[str]] = {name: [] for name in self.names}

    @property
    def size(self) -> int:
        size: int = self.server.tables["orders_config"][1,]["size"]
        return size

    def call(self, session: Session, name: str, **given: Any) -> Steps:
        if not given.get("subscriber", True):
            del given["subscriber"]
        return (yield from Call(self._trees, name, session, **given).run())

    def call_alone(self, name: str, **given: Any) -> list[Row]:
        """A call with no other session between its statements."""
        rows: list[Row] = finish(self.call(self.server.session(), name, **given))
        return rows

    def relay(self, size: int) -> bool:
        """False: a session blocks it, or there are more messages than slots."""
        session = self.server.session()
        try:
            finish(Call(self._trees, "relay", session, new_size=size).run())
        except (BusyError, ThrownError):
            session.roll_back()
            return False
        return True

    def run_interleaved(self) -> None:
        """Run sessions statement by statement, with relays where no session blocks them."""
        running = [self._session(n) for n in range(self.chance.randint(2, 4))]
        between_relays = self.chance.choice([20, 100, 10000])
        started = len(running)
        while running:
            if self._fails_over and not self.chance.randrange(100 * started):
                for session in running:
                    session.close()
                self.server.fail_over()
                running = [self._session(started + n) for n in range(len(running))]
                started += len(running)
            if self.is_orderly or self.chance.randrange(between_relays):
                choice = self.chance.choice(running)
                if next(choice, 1):
                    running.remove(choice)
            else:
                self.relay(self.chance.randint(1, 7))

    def _session(self, number: int) -> Generator[int, None, None]:  # noqa: C901
        session = self.server.session()
        for serial in range(self.chance.randint(1, 5)):
            pushed: list[str] = []
            popped: list[tuple[str, str]] = []
            calls = self.chance.randint(1, 3)
            ending = self.chance.choice(("commit", "commit", "roll back", "die", "attention"))
            if self.is_orderly:
                ending = "commit"
            steps_left = self.chance.randint(1, 200) if ending in CUT else 10**9
            committed = session.commits
            if calls > 1:
                session.begin()
            steps = self._calls(session, calls, f"{number}.{serial}", pushed, popped)
            for _ in steps:
                if session.commits > committed and calls == 1:
                    continue  # its answer comes, whatever happens to the server
                yield 0
                steps_left -= 1
                if (
                    steps_left <= 0 and session.depth
                ):  # later the call would be in doubt, which is not modelled
                    if ending == "attention":
                        with suppress(AttentionError):
                            steps.throw(AttentionError)
                    pushed, popped = [], []
                    break
            if ending == "commit" and session.depth:
                session.commit()
            elif session.depth:
                pushed, popped = [], []
                session.roll_back()
            self.pushed += pushed
            for name, payload in popped:
                self.popped[name].append(payload)
            self.check_committed_slots()
            yield 0

    def _calls(
        self, session: Session, calls: int, prefix: str, pushed: list[str], popped: Any
    ) -> Generator[None, None, None]:
        for call in range(calls):
            kind, n = self.chance.choice(("push", "pop", "push_many", "pop_many")), 1
            name = self.chance.choice(self.names)
            if kind.endswith("many"):
                n = self.chance.randint(1, 4)
            payloads = [f"{prefix}.{call}.{one}" for one in range(n)]
            if kind == "push":
                rows = yield from self.call(session, kind, payload=payloads[0])
            elif kind == "push_many":
                text = "[" + ",".join(f'"{payload}"' for payload in payloads) + "]"
                rows = yield from self.call(session, kind, payloads=text)
            else:
                given = {"n": n} if kind == "pop_many" else {}
                rows = yield from self.call(session, kind, subscriber=name, **given)
                popped += [(name, row["payload"]) for row in rows]
                continue
            pushed += [p for p, row in zip(payloads, rows, strict=True) if row["id"] is not None]
            yield

    def check_committed_slots(self) -> None:
        """Each filled slot has its content and each content its slot, in the right partition."""
        tables = self.server.tables
        contents = {id_: table for table in CONTENTS for (id_,) in tables[table]}
        filled = [row for row in tables["orders"].values() if row["reference_count"]]
        expected = {row["first_id"] for row in filled if row.get("message") is None} - {None}
        assert contents == {id_: f"orders_content_{id_ % 2}" for id_ in expected}

    def drain(self, name: str) -> list[Row]:
        """Everything that a subscriber can pop until no number is left to draw."""
        found = []
        sequence = f"orders_pop_seq_{NAMES.index(name) + 1}" if name else "orders_pop_seq"
        while True:
            rows = self.call_alone("pop", subscriber=name)
            found += rows
            if (
                not rows
                and self.server.sequences[sequence] >= self.server.sequences["orders_push_seq"]
            ):
                return found

    def pop_rest_and_check(self, *, relays: bool = True) -> None:
        """Pop everything else; each subscriber must then have had each message once."""
        assert not self.server.locks
        assert not self.server.open
        assert self.is_orderly or not relays or self.relay(7)
        for name in self.names:
            rows = self.drain(name)
            self.popped[name] += [row["payload"] for row in rows]
            ids = [row["id"] for row in rows]
            assert ids == sorted(ids) or not relays
            assert Counter(self.popped[name]) == Counter(self.pushed), name
        for _ in range(self.size):
            for name in self.names:
                assert not self.call_alone("pop", subscriber=name)
        drawn = self.server.sequences["orders_push_seq"]
        parked = self.server.tables["orders_parked"].values()
        assert not [row for row in parked if row["number"] <= drawn], "a number nobody comes for"

    def check_all_archived(self) -> None:
        """What all have popped must be in the archive, once, and no content be left."""
        archived = self.server.tables["orders_archive"].values()
        assert sorted(row["payload"] for row in archived) == sorted(self.pushed)
        assert not any(row["reference_count"] for row in self.server.tables["orders"].values())
        assert not any(self.server.tables[table] for table in CONTENTS)
