"""The model of a ring with subscribers: each has a ring of its own, and pushes go to all of them.

They share the size and the push numbers, and a slot is free only if it is free for all. Pops are
`ring_model`'s, on one of them. Calls are not interleaved.
"""

from collections.abc import Sequence

from tests.faults.harness.model import PUSH_TRIES, Live, Store, Transaction


def _gap(txs: Sequence[Transaction]) -> int:
    return max(tx.store.gap for tx in txs)


def _draw(txs: Sequence[Transaction]) -> int:
    (number,) = {tx.store.draw(push=True) for tx in txs}
    return number


def _is_free(txs: Sequence[Transaction], slot: int) -> bool:
    """Whether the slot is free for all; if so, lock it."""
    if any(tx.slot(slot) is not None for tx in txs):
        return False
    return all(tx.lock_slot(slot) for tx in txs)


def _write(txs: Sequence[Transaction], number: int, payload: str) -> None:
    for tx in txs:
        tx.write(number % tx.store.size, Live(number, number, payload))


def _leave_out(txs: Sequence[Transaction], number: int) -> None:
    """A number without a message: unpark it if it is parked, else mark it as void."""
    for tx in txs:
        if not tx.unpark([(number, False)]):
            tx.park(number, void=True)


def push(txs: Sequence[Transaction], payload: str) -> int | None:
    """The number under which the message is stored; None if the ring is full."""
    size = txs[0].store.size
    for _ in range(PUSH_TRIES):
        if _gap(txs) >= size:
            return None
        number = _draw(txs)
        if _is_free(txs, number % size):
            _write(txs, number, payload)
            return number
        _leave_out(txs, number)
    return None


def push_many(txs: Sequence[Transaction], payloads: Sequence[str]) -> list[int | None]:
    """A number for each payload; None for the last ones, which did not fit."""
    size = txs[0].store.size
    room = min(len(payloads), size, size - _gap(txs))
    numbers = [_draw(txs) for _ in range(room)]
    filled = [number for number in numbers if _is_free(txs, number % size)]
    for number, payload in zip(filled, payloads, strict=False):
        _write(txs, number, payload)
    for number in numbers:
        if number not in filled:
            _leave_out(txs, number)
    return [*filled, *[None] * (len(payloads) - len(filled))]


def relay(stores: Sequence[Store], new_size: int) -> bool:
    """Renumber what is owed to any subscriber; False and no change if it is over `new_size`.

    Each continues at the first message owed to it; later ones that it has popped are void.
    """
    live = sorted({slot.message_id for store in stores for slot in store.slots.values()})
    if len(live) > new_size:
        return False
    base = max(max(store.next_push, store.next_pop) for store in stores)
    next_push = base + len(live)
    renumbered = dict(zip(live, range(base, next_push), strict=True))
    for store in stores:
        owed = [
            Live(renumbered[slot.message_id], slot.first_id, slot.payload)
            for slot in store.slots.values()
        ]
        ids = {one.message_id for one in owed}
        store.slots = {one.message_id % new_size: one for one in owed}
        store.size, store.base, store.next_push = new_size, base, next_push
        store.next_pop = min(ids, default=next_push)
        store.parked = {(n, True) for n in range(store.next_pop, next_push) if n not in ids}
    return True
