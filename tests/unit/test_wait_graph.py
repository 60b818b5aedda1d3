"""Trees of blockers and waiters: each session is in them once, whatever the waits are."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.monitor.wait_graph import Node, wait_graph

Waits = dict[int, list[int]]
WAITS = st.dictionaries(st.integers(0, 12), st.lists(st.integers(0, 14), max_size=4), max_size=13)


def pairs(trees: tuple[Node[int], ...]) -> Iterator[tuple[Node[int], Node[int] | None]]:
    """Every node with the one above it."""
    left: list[tuple[Node[int], Node[int] | None]] = [(tree, None) for tree in trees]
    while left:
        node, above = left.pop()
        yield node, above
        left += [(waiter, node) for waiter in node.waiters]


def reached(blocked_by: Waits, start: int) -> set[int]:
    """All sessions that `start` waits for, directly or through others."""
    found: set[int] = set()
    left = [start]
    while left:
        for other in blocked_by.get(left.pop(), []):
            if other not in found:
                found.add(other)
                left.append(other)
    return found


def without_selves(waits: Waits) -> Waits:
    return {key: [other for other in others if other != key] for key, others in waits.items()}


@given(WAITS)
def test_each_session_appears_once_below_one_that_it_waits_for(waits: Waits) -> None:
    for node, above in pairs(wait_graph(waits)):
        if above is not None:
            assert above.key in waits[node.key]
            assert not node.cut
    waits = without_selves(waits)
    trees = wait_graph(waits)
    involved = {key for key, others in waits.items() if others}
    involved |= {other for others in waits.values() for other in others}
    assert sorted(node.key for node, _ in pairs(trees)) == sorted(involved)
    # A root waits for nobody, or is in a cycle that waits for no such session.
    free = {key for key in range(15) if not waits.get(key)}
    for tree in trees:
        if tree.cut:
            assert tree.key in reached(waits, tree.key)
            assert not reached(waits, tree.key) & free
        else:
            assert not waits.get(tree.key)


@given(WAITS, st.randoms())
def test_without_cycles_the_order_of_waits_changes_neither_roots_nor_total_size(
    waits: Waits, random: object
) -> None:
    ordered = {key: [other for other in others if other > key] for key, others in waits.items()}
    backwards = dict(reversed(ordered.items()))
    sizes = sorted(tree.size for tree in wait_graph(ordered))
    assert sum(sizes) == sum(tree.size for tree in wait_graph(backwards))
    assert {tree.key for tree in wait_graph(ordered)} == {
        tree.key for tree in wait_graph(backwards)
    }


def test_waiters_for_the_first_waiter_are_below_it() -> None:
    """As PostgreSQL reports it: the first waits for the holder, the others for the first."""
    assert wait_graph({2: [1], 3: [2], 4: [2]}) == (Node(1, (Node(2, (Node(3), Node(4))),)),)


def test_of_several_blockers_the_one_nearest_to_a_root_is_the_parent() -> None:
    (tree, other) = wait_graph({4: [3, 1], 3: [2], 2: [1], 6: [5]})
    assert tree == Node(1, (Node(4), Node(2, (Node(3),))))
    assert (tree.size, other.size) == (4, 2)


def test_a_deadlock_is_cut_in_its_cycle_not_among_its_waiters() -> None:
    (tree,) = wait_graph({1: [2], 2: [3], 3: [2]})
    assert (tree.key in {2, 3}, tree.cut, tree.size) == (True, True, 3)


@pytest.mark.parametrize("waits", [{}, {1: []}, {1: [1]}, {1: [], 2: []}])
def test_there_are_no_trees_if_nobody_waits(waits: Waits) -> None:
    assert wait_graph(waits) == ()


def test_a_chain_of_5000_sessions_is_one_tree() -> None:
    (tree,) = wait_graph({n: [n - 1] for n in range(1, 5000)})
    assert tree.size == 5000


def test_a_tree_as_json() -> None:
    (tree,) = wait_graph({2: [1], 1: [2]})
    assert tree.as_json() == {
        "session": 2,
        "deadlock": True,
        "waiters": [{"session": 1, "deadlock": False, "waiters": []}],
    }
