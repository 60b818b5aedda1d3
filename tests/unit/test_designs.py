"""A design's options and their values, states and verbs."""

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.catalog import installed_queue
from console.designs import DESIGNS, Design, Option, Order, design, designs_on
from console.designs.model import EVERY_VERB, FINISHING_VERBS
from console.errors import UsageError
from console.features.presets.designs import LIBRARIES

EACH = pytest.mark.parametrize("tested_design", DESIGNS.values(), ids=DESIGNS)
OPTIONS = [
    (tested_design, option)
    for tested_design in DESIGNS.values()
    for option in tested_design.options
]
EACH_OPTION = pytest.mark.parametrize(
    ("tested_design", "option"),
    OPTIONS,
    ids=[f"{tested_design.name}-{option.name}" for tested_design, option in OPTIONS],
)


def defaults(**changed: str) -> dict[str, str]:
    """The options of most designs."""
    return {"payload": "text", "max_bytes": "unlimited", "notify": "off"} | changed


DEFAULTS = {
    "naive": defaults(max_bytes="8000", archive_at_pop="off"),
    "ring": defaults(
        max_bytes="1000",
        archive_at_pop="off",
        size="10000",
        cache="auto",
        commit_wait_ms="5",
        in_hand="off",
        history="off",
        consumers="any",
    ),
    "heap": defaults(archive_at_pop="off"),
    "fifo": defaults(archive_at_pop="off", order="lax"),
    "stack": defaults(archive_at_pop="off"),
    "pending": defaults(archive_at_pop="off"),
    "claim": defaults(history="off", consumers="any"),
    "status": defaults(history="off", consumers="any"),
    "split": defaults(history="off", consumers="any", dequeue="single"),
    "broker": {
        "payload": "text",
        "max_bytes": "unlimited",
        "archive_at_pop": "off",
        "conversation": "kept",
        "activation": "off",
    },
}


def needs_in_hand(tested_design: Design, option: Option) -> bool:
    """Whether the option requires `in_hand=on`."""
    return tested_design.order is Order.NUMBERS and option.name == "history"


@EACH
def test_the_defaults_are_those_of_the_documentation(tested_design: Design) -> None:
    assert tested_design.complete_options({}) == DEFAULTS[tested_design.name]
    for engine in tested_design.engines:
        here = {
            name: DEFAULTS[tested_design.name][name]
            for name in tested_design.complete_options({}, engine)
        }
        assert tested_design.complete_options({}, engine) == here
        assert ("notify" in here) == (engine == "postgresql")


def test_an_option_missing_on_an_engine_is_refused_with_the_engines_that_have_it() -> None:
    with pytest.raises(UsageError, match="no option 'notify' on mssql") as refused:
        DESIGNS["fifo"].complete_options({"notify": "off"}, "mssql")
    assert "postgresql" in refused.value.why


@EACH_OPTION
def test_an_option_accepts_its_values_and_no_others(tested_design: Design, option: Option) -> None:
    edges = [] if option.choices else ["1", str(option.maximum)]
    if option.names:
        edges = ["billing", "billing,search:3", "a" * 31]
    for value in (*option.choices, *option.words, *edges, option.default):
        apart = {"content": "apart"} if option.name == "partitions" else {}
        held = {"in_hand": "on"} if needs_in_hand(tested_design, option) else {}
        complete = tested_design.complete_options({**apart, **held, option.name: value})
        # Some options of a ring are omitted if they have their defaults.
        assert complete.get(option.name, option.default) == value
    outside = [] if option.choices else ["0", str(option.maximum + 1)]
    if option.names:
        names = ",".join(f"s{n}" for n in range(option.maximum + 1))
        outside = ["a,,b", "a,a", "a:2,b", "a,none", "a b", "a;drop", "a:0", "a" * 32, names]
    else:
        outside.append("nope")
    if not option.choices and not option.names:
        assert option.check("0001") == "1"
    for value in ("", " ", "-1", "1.0", "1e3", "٣", "ON", *outside):
        with pytest.raises(UsageError, match=option.name) as refused:
            option.check(value)
        assert refused.value.next_step


@EACH
def test_an_unknown_option_is_refused_with_the_known_ones(tested_design: Design) -> None:
    with pytest.raises(UsageError, match="'nope'") as refused:
        tested_design.complete_options({"nope": "1"})
    assert all(option.name in refused.value.next_step for option in tested_design.options)


@EACH
def test_all_combinations_of_options_are_valid_except_in_hand_with_archive_at_pop(
    tested_design: Design,
) -> None:
    choices = [[(o.name, value) for value in o.choices] for o in tested_design.options if o.choices]
    for chosen in itertools.product(*choices):
        given_options = dict(chosen)
        keeps, archives = given_options.get("in_hand"), given_options.get("archive_at_pop")
        if keeps == archives == "on":
            with pytest.raises(UsageError, match="exclude"):
                tested_design.complete_options(given_options)
        else:
            complete = tested_design.complete_options(given_options)
            apart = given_options.get("content") == "apart"
            omitted = {"subscribers"} if apart else {"content", "partitions", "subscribers"}
            assert list(complete) == [
                o.name for o in tested_design.options if o.name not in omitted
            ]
            assert tested_design.complete_options(complete) == complete


def test_content_apart_has_no_size_limit_unless_one_is_given() -> None:
    tested_design = DESIGNS["ring"]
    apart = tested_design.complete_options({"content": "apart"})
    assert (apart["max_bytes"], apart["partitions"]) == ("unlimited", "8")
    assert (
        tested_design.complete_options({"content": "apart", "max_bytes": "8000"})["max_bytes"]
        == "8000"
    )
    with pytest.raises(UsageError, match="max_bytes"):
        tested_design.complete_options({"max_bytes": "8000"})
    with pytest.raises(UsageError, match="content=apart only"):
        tested_design.complete_options({"partitions": "4"})


@EACH
def test_verbs_states_and_order_follow_from_the_options(tested_design: Design) -> None:
    choices = [[(o.name, value) for value in o.choices] for o in tested_design.options if o.choices]
    for chosen in itertools.product(*choices):
        options = dict(chosen)
        verbs, states = tested_design.verbs_with(options), tested_design.states_with(options)
        assert len(set(verbs)) == len(verbs)
        assert set(EVERY_VERB) <= set(verbs)
        assert tested_design.finishes(options) == ("claimed" in states)
        assert tested_design.finishes(options) == (set(FINISHING_VERBS) <= set(verbs))
        assert ("relay" in verbs) == ("resize" in verbs) == (tested_design.order is Order.NUMBERS)
        other = {"strict": Order.STRICT, "each": Order.NONE}
        chosen_order = options.get("order") or options.get("conversation") or ""
        assert tested_design.order_with(options) is other.get(chosen_order, tested_design.order)


@EACH
def test_an_installed_queue_has_a_column_for_each_needed_role(tested_design: Design) -> None:
    queue = installed_queue("s", "q", tested_design, tested_design.complete_options({}))
    assert set(tested_design.needed_roles) <= set(queue.roles)
    sequences = {role: name for role, name in queue.roles.items() if role.endswith("_sequence")}
    assert all(name.startswith("q_") for name in sequences.values())
    assert queue.table == "q" + tested_design.table_suffix


@given(st.text())
def test_an_unknown_design_is_refused_with_the_known_ones(name: str) -> None:
    if name in DESIGNS:
        assert design(name, DESIGNS[name].engines[0]).name == name
    else:
        with pytest.raises(UsageError) as refused:
            design(name)
        assert "ring" in refused.value.next_step


def test_a_design_missing_on_an_engine_is_refused_with_the_engines_that_have_it() -> None:
    with pytest.raises(UsageError, match="postgresql has no design 'broker'") as refused:
        design("broker", "postgresql")
    assert "mssql" in refused.value.why
    assert set(DESIGNS) - set(designs_on("postgresql")) == {"broker"}
    assert designs_on("mssql") == DESIGNS


def test_a_librarys_name_is_its_title_without_the_versions() -> None:
    names = {of.library_name for of in LIBRARIES.values()}
    assert names >= {"River", "Delayed::Job", "pg-boss", "Solid Queue", "Hangfire.PostgreSql"}
    assert not [name for name in names if re.search(r" [0-9]|before|later|and", name)]
