"""The data on known waits: complete, about designs that exist, and found by the servers' names."""

import pytest

from console.catalog import Queue, installed_queue
from console.designs import DESIGNS
from console.engines import PRODUCTS
from console.monitor.known_waits import explain, known_waits, wait_kind_of

ENTRIES = [(engine, known) for engine in PRODUCTS for known in known_waits(engine)]


def queue(design: str, **options: str) -> Queue:
    definition = DESIGNS[design]
    return installed_queue("public", "q", definition, definition.complete_options(options))


def test_an_entry_has_short_texts_and_is_found_by_its_wait() -> None:
    for engine, known in ENTRIES:
        texts = [known.description, known.meaning, *known.by_design.values()]
        assert all(text.strip() == text and text.endswith(".") for text in texts), known
        # A person reads them at night: a few lines of 80.
        assert max(map(len, texts)) <= 240, known
        assert explain(engine, known.kind, known.wait.replace("*", "x"), None), known


def test_entries_refer_to_existing_designs_and_options() -> None:
    for engine, known in ENTRIES:
        for words, text in known.by_design.items():
            name, *options = words.split()
            assert engine in DESIGNS[name].engines
            given = dict(option.split("=") for option in options)
            assert DESIGNS[name].complete_options(given, engine) | given
            assert text in known.explanation(queue(name, **given))


@pytest.mark.parametrize("engine", PRODUCTS)
def test_idle_in_transaction_is_explained_for_every_design(engine: str) -> None:
    """A session that holds rows and does nothing is the most common cause."""
    (idle,) = [known for known in known_waits(engine) if known.wait == "idle in transaction"]
    here = {name for name, design in DESIGNS.items() if engine in design.engines}
    assert {words.split()[0] for words in idle.by_design} == here


def test_an_explanation_for_an_option_precedes_the_design_s() -> None:
    lax, strict = (
        explain("postgresql", "Client", "idle in transaction", queue("fifo", order=order))
        for order in ("lax", "strict")
    )
    assert lax
    assert strict
    assert "skip" in lax
    assert "no other session pops" in strict


@pytest.mark.parametrize(
    ("kind", "wait"), [("IO", "WALSync"), ("IO", "WalSync"), ("LWLock", "WALWrite")]
)
def test_the_spelling_of_other_versions_is_known(kind: str, wait: str) -> None:
    found = explain("postgresql", kind, wait, None)
    assert found
    assert "log" in found


def test_a_wait_without_an_entry_is_explained_by_its_kind() -> None:
    own = explain("postgresql", "IO", "DataFileRead", None)
    other = explain("postgresql", "IO", "SomethingNew", None)
    assert other
    assert own != other


def test_an_unknown_wait_has_no_meaning() -> None:
    assert explain("postgresql", "NewKind", "Something", None) is None
    assert explain("postgresql", None, None, queue("fifo")) is None


@pytest.mark.parametrize(
    ("wait", "kind"),
    [
        ("LCK_M_U", "Lock"),
        ("LCK_M_RIn_NL", "Lock"),
        ("LCK_M_S_XACT_MODIFY", "Lock"),
        ("PAGELATCH_EX", "Buffer Latch"),
        ("PAGEIOLATCH_SH", "Buffer IO"),
        ("LATCH_EX", "Latch"),
        ("WRITELOG", "Tran Log IO"),
        ("ASYNC_NETWORK_IO", "Network IO"),
        ("HADR_THROTTLE_LOG_RATE_GOVERNOR", "Log Rate Governor"),
        ("HADR_SYNC_COMMIT", "Replication"),
        ("CXSYNC_PORT", "Parallelism"),
        ("SOMETHING_NEW", "Other"),
        (None, None),
    ],
)
def test_sql_server_s_waits_get_the_categories_of_query_store(
    wait: str | None, kind: str | None
) -> None:
    assert wait_kind_of("mssql", wait) == kind


def test_each_engine_has_entries_for_distinct_waits() -> None:
    for engine in PRODUCTS:
        names = [(known.kind.lower(), known.wait.lower()) for known in known_waits(engine)]
        assert len(set(names)) == len(names) > 30
        assert all(kind and wait for kind, wait in names)
