"""Which cases the short tier runs: they cover every pair, and none is redundant."""

from tests.contract.variants import ALL, BEHAVIOURS
from tests.tools.pairs import covering, pairs_of

TESTS = ("test_a", "test_b", "test_c")
CASES = [frozenset(pairs_of(test, [variant])) for test in TESTS for variant in (*ALL, *BEHAVIOURS)]
CHOSEN = covering(CASES)


def test_every_pair_is_covered_with_each_payload_and_option_value() -> None:
    covered = frozenset[object]().union(*(CASES[number] for number in CHOSEN))
    assert covered == frozenset[object]().union(*CASES)
    for variant in ALL:
        assert (variant.design.name, ("payload", variant.payload)) in covered
        assert covered >= {(test, ("payload", variant.payload)) for test in TESTS}
        for name, value in variant.given.items():
            assert (variant.design.name, (name, value)) in covered


def test_cases_without_payloads_cover_payloads_by_flow_and_options_by_design() -> None:
    cases = [
        frozenset(pairs_of(test, [variant], payload=False)) for test in TESTS for variant in ALL
    ]
    chosen = covering(cases)
    assert len(chosen) < len(covering([frozenset(pairs_of(t, [v])) for t in TESTS for v in ALL]))
    covered = frozenset[object]().union(*(cases[number] for number in chosen))
    for variant in ALL:
        assert ("module", variant.design.name) in covered
        assert (variant.design.flow, ("payload", variant.payload)) in covered
        for name, value in variant.given.items():
            assert name == "payload" or (variant.design.name, (name, value)) in covered


def test_redundant_cases_do_not_run_and_the_choice_is_deterministic() -> None:
    assert len(CHOSEN) < len(CASES) / 3
    assert covering([CASES[0], CASES[0]]) == {0}
    assert covering(list(CASES)) == CHOSEN


def test_a_case_of_two_variants_shows_the_pairs_of_both() -> None:
    variant, other = ALL[0], ALL[-1]
    both = set(pairs_of("test", [variant, other]))
    assert both == set(pairs_of("test", [variant])) | set(pairs_of("test", [other]))
