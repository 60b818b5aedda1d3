"""Interleaves sessions on a ring's model at random, and counts every message."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.faults.ring_model import Steps, Store, finish

Calls = list[tuple[str, int]]
"""Of a transaction: (call, number of messages)."""

_KINDS = ("push", "pop", "push_many", "pop_many")


def check_interleaving(model: Any, seed: int, **of_the_ring: bool) -> None:
    """Statement by statement, with rollbacks and relays: what was committed is popped once.

    Relays run where no transaction's lock would make them wait.
    """
    chance = Random(seed)
    store = model.Store(chance.randint(1, 7), chance=chance, **of_the_ring)
    committed = _Committed()
    running = [
        _session(model, store, committed, number, _transactions(chance))
        for number in range(chance.randint(2, 4))
    ]
    steps_between_relays = chance.choice([10, 30, 1000])
    while running:
        if chance.randrange(steps_between_relays):
            _step(running, chance.randrange(len(running)))
        elif not any(transaction.touched for transaction in store.open):
            store.relay(chance.randint(1, 7))

    assert not store.locks
    assert store.relay(max(store.size, len(store.slots)))
    committed.popped += drain(model, store)
    assert sorted(committed.popped) == sorted(committed.pushed)
    assert not store.slots


def _transactions(chance: Random) -> list[tuple[Calls, int]]:
    """One session's transactions, each with how it ends (0: rollback)."""
    return [
        (
            [(chance.choice(_KINDS), chance.randint(1, 4)) for _ in range(chance.randint(1, 3))],
            chance.randint(0, 3),
        )
        for _ in range(chance.randint(1, 4))
    ]


@dataclass
class _Committed:
    pushed: list[str] = field(default_factory=list)
    popped: list[str] = field(default_factory=list)


def _step(running: list[Iterator[None]], position: int) -> None:
    try:
        next(running[position])
    except StopIteration:
        del running[position]


def _session(
    model: Any,
    store: Any,
    committed: _Committed,
    session: int,
    transactions: list[tuple[Calls, int]],
) -> Iterator[None]:
    for serial, (calls, ending) in enumerate(transactions):
        tx = store.begin()
        tx.is_of_one_call = len(calls) == 1
        pushed: list[str] = []
        popped: list[str] = []
        for index, (call, n) in enumerate(calls):
            name = f"{session}.{serial}.{index}"
            yield from _call(model, tx, call, [f"{name}.{i}" for i in range(n)], pushed, popped)
            yield
        if ending:
            tx.commit()
            committed.pushed += pushed
            committed.popped += popped
        else:
            tx.roll_back()
        yield


def _call(
    model: Any, tx: Any, call: str, payloads: list[str], pushed: list[str], popped: list[str]
) -> Steps[None]:
    if call == "push":
        if (yield from model.push(tx, payloads[0])) is not None:
            pushed.append(payloads[0])
    elif call == "push_many":
        stored = yield from model.push_many(tx, payloads)
        pushed += [p for p, number in zip(payloads, stored, strict=True) if number is not None]
    elif call == "pop":
        live = yield from model.pop(tx)
        popped += [live.payload] if live else []
    else:
        popped += [live.payload for live in (yield from model.pop_many(tx, len(payloads)))]


def drain(model: Any, store: Store) -> list[str]:
    """Pop until no number is left to draw, and no parked one has its message."""
    popped = []
    while True:
        tx = store.begin()
        live = finish(model.pop(tx))
        tx.commit()
        if live is not None:
            popped.append(live.payload)
        elif store.gap <= 0:
            return popped
