"""Trees of blockers and their waiters. Each session is in them once, even in a deadlock."""

from collections import defaultdict
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

Waiter = TypeVar("Waiter", bound=Hashable)


@dataclass(frozen=True)
class Node(Generic[Waiter]):
    """A session that blocks others or waits, with its waiters."""

    key: Waiter
    waiters: tuple["Node[Waiter]", ...] = ()
    cut: bool = False
    """A root that waits itself: a cycle (a deadlock) was cut here."""

    def as_json(self) -> dict[str, object]:
        """The stable object of `waits --json`; `session` refers to its list of sessions."""
        waiters = [waiter.as_json() for waiter in self.waiters]
        return {"session": self.key, "deadlock": self.cut, "waiters": waiters}

    @property
    def size(self) -> int:
        count, left = 0, [self]
        while left:
            node = left.pop()
            count += 1
            left += node.waiters
        return count


def wait_graph(blocked_by: Mapping[Waiter, Collection[Waiter]]) -> tuple[Node[Waiter], ...]:
    """The trees, the largest first; sessions that neither wait nor block are in none.

    A session with several blockers is below the one nearest to a root. Waiters are in the order of
    the mapping. A blocker that is no key of it is a root.
    """
    blockers = {
        key: [other for other in dict.fromkeys(others) if other != key]
        for key, others in blocked_by.items()
    }
    waiters: defaultdict[Waiter, list[Waiter]] = defaultdict(list)
    for key, others in blockers.items():
        for other in others:
            waiters[other].append(key)
    roots = [key for key in waiters if not blockers.get(key)]
    parents: dict[Waiter, Waiter | None] = {}
    _grow(roots, waiters, parents)
    cuts = []
    for key, others in blockers.items():
        if others and key not in parents:
            cuts.append(_on_a_circle(key, blockers, parents))
            _grow(cuts[-1:], waiters, parents)
    trees = _built(parents, frozenset(cuts))
    return tuple(sorted(trees, key=lambda node: -node.size))


def _grow(
    roots: list[Waiter],
    waiters: Mapping[Waiter, list[Waiter]],
    parents: dict[Waiter, Waiter | None],
) -> None:
    """Add the roots and all that wait for them, layer by layer."""
    parents.update(dict.fromkeys(roots))
    layer = roots
    while layer:
        below = []
        for parent in layer:
            for key in waiters.get(parent, ()):
                if key not in parents:
                    parents[key] = parent
                    below.append(key)
        layer = below


def _on_a_circle(
    start: Waiter, blockers: Mapping[Waiter, list[Waiter]], parents: Mapping[Waiter, Waiter | None]
) -> Waiter:
    """From a session that no root reaches, the first one that comes twice on the way up."""
    met = set()
    key = start
    while key not in met:
        met.add(key)
        # Waiters of a session in `parents` are there too, so a blocker of these is not.
        key = next(other for other in blockers[key] if other not in parents)
    return key


def _built(parents: Mapping[Waiter, Waiter | None], cuts: Collection[Waiter]) -> list[Node[Waiter]]:
    """The nodes from the leaves up: parents come before their waiters."""
    below: defaultdict[Waiter, list[Node[Waiter]]] = defaultdict(list)
    trees = []
    for key, parent in reversed(list(parents.items())):
        node = Node(key, tuple(reversed(below.pop(key, []))), key in cuts)
        if parent is None:
            trees.append(node)
        else:
            below[parent].append(node)
    return trees[::-1]
