"""What the short tier runs of cases over variants: every pair, and no case for nothing."""

from tests.contract.variants import ALL, BEHAVIOURS
from tests.pairs import covering, pairs_of

TESTS = ("test_a", "test_b", "test_c")
CASES = [frozenset(pairs_of(test, [variant])) for test in TESTS for variant in (*ALL, *BEHAVIOURS)]
CHOSEN = covering(CASES)


def test_every_pair_is_there_each_payload_and_each_option_s_value() -> None:
    seen = frozenset[object]().union(*(CASES[number] for number in CHOSEN))
    assert seen == frozenset[object]().union(*CASES)
    for variant in ALL:
        assert (variant.design.name, ("payload", variant.payload)) in seen
        assert seen >= {(test, ("payload", variant.payload)) for test in TESTS}
        for name, value in variant.given.items():
            assert (variant.design.name, (name, value)) in seen


def test_where_no_payload_is_moved_each_flow_meets_each_and_each_design_its_other_options() -> None:
    cases = [
        frozenset(pairs_of(test, [variant], payload=False)) for test in TESTS for variant in ALL
    ]
    chosen = covering(cases)
    assert len(chosen) < len(covering([frozenset(pairs_of(t, [v])) for t in TESTS for v in ALL]))
    seen = frozenset[object]().union(*(cases[number] for number in chosen))
    for variant in ALL:
        assert ("module", variant.design.name) in seen
        assert (variant.design.flow, ("payload", variant.payload)) in seen
        for name, value in variant.given.items():
            assert name == "payload" or (variant.design.name, (name, value)) in seen


def test_a_case_that_adds_nothing_does_not_run_and_the_choice_is_the_same_every_time() -> None:
    assert len(CHOSEN) < len(CASES) / 3
    assert covering([CASES[0], CASES[0]]) == {0}
    assert covering(list(CASES)) == CHOSEN


def test_a_case_of_two_variants_shows_the_pairs_of_both() -> None:
    one, other = ALL[0], ALL[-1]
    both = set(pairs_of("test", [one, other]))
    assert both == set(pairs_of("test", [one])) | set(pairs_of("test", [other]))
