"""Sessions that call a ring's model in turns that chance chooses; every message is counted."""

from collections.abc import Iterator
from random import Random
from typing import Any

from tests.faults.ring_model import Steps, Store, finish

Calls = list[tuple[str, int]]
"""What a transaction does: (call, how many messages), the last one says how it ends."""

_KINDS = ("push", "pop", "push_many", "pop_many")


def check_interleaving(model: Any, seed: int, **of_the_ring: bool) -> None:
    """Interleaved statement by statement, with rollbacks and relays: what committed comes out once.

    A relay waits for nobody here: it comes where nobody holds it off.
    """
    chance = Random(seed)
    store = model.Store(chance.randint(1, 7), chance=chance, **of_the_ring)
    trace = _Trace()
    running = [
        _session(model, store, trace, number, _transactions(chance))
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
    trace.popped += drain(model, store)
    assert sorted(trace.popped) == sorted(trace.pushed)
    assert not store.slots


def _transactions(chance: Random) -> list[tuple[Calls, int]]:
    """What one session does, and whether each ends in a rollback (0)."""
    return [
        (
            [(chance.choice(_KINDS), chance.randint(1, 4)) for _ in range(chance.randint(1, 3))],
            chance.randint(0, 3),
        )
        for _ in range(chance.randint(1, 4))
    ]


class _Trace:
    """What committed transactions pushed and popped."""

    def __init__(self) -> None:
        self.pushed: list[str] = []
        self.popped: list[str] = []


def _step(running: list[Iterator[None]], position: int) -> None:
    try:
        next(running[position])
    except StopIteration:
        del running[position]


def _session(
    model: Any, store: Any, trace: _Trace, session: int, transactions: list[tuple[Calls, int]]
) -> Iterator[None]:
    for serial, (calls, ending) in enumerate(transactions):
        tx = store.begin()
        tx.is_of_one_call = len(calls) == 1
        pushed: list[str] = []
        popped: list[str] = []
        for place, (call, n) in enumerate(calls):
            name = f"{session}.{serial}.{place}"
            yield from _call(model, tx, call, [f"{name}.{i}" for i in range(n)], pushed, popped)
            yield
        if ending:
            tx.commit()
            trace.pushed += pushed
            trace.popped += popped
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
    """Pop until there is nothing: no number left to draw, no parked one with its message."""
    popped = []
    while True:
        tx = store.begin()
        live = finish(model.pop(tx))
        tx.commit()
        if live is not None:
            popped.append(live.payload)
        elif store.gap <= 0:
            return popped
