"""The data on known waits: complete, about designs that exist, and found by what servers say."""

from itertools import chain

import pytest

from console.catalog import Queue, installed_queue
from console.designs import DESIGNS
from console.engines import PRODUCTS
from console.monitor.known_waits import KnownWait, explain, known_waits, wait_kind_of

ENTRIES = [(engine, known) for engine in PRODUCTS for known in known_waits(engine)]
IDS = [f"{engine} {known.kind}/{known.wait}" for engine, known in ENTRIES]


def queue(design: str, **options: str) -> Queue:
    of = DESIGNS[design]
    return installed_queue("public", "q", of, of.complete_options(options))


@pytest.mark.parametrize("engine", PRODUCTS)
def test_every_engine_has_its_file(engine: str) -> None:
    assert len(known_waits(engine)) > 30


@pytest.mark.parametrize(("engine", "known"), ENTRIES, ids=IDS)
def test_an_entry_says_what_it_is_and_what_it_means(engine: str, known: KnownWait) -> None:
    texts = [known.description, known.meaning, *known.by_design.values()]
    assert all(text.strip() == text and text.endswith(".") for text in texts)
    # A person reads them at night: a few lines of 80.
    assert max(map(len, texts)) <= 240
    assert explain(engine, known.kind, known.wait.replace("*", "x"), None)


@pytest.mark.parametrize(("engine", "known"), ENTRIES, ids=IDS)
def test_an_entry_is_about_designs_and_options_that_there_are(
    engine: str, known: KnownWait
) -> None:
    for words, text in known.by_design.items():
        name, *options = words.split()
        design = DESIGNS[name]
        assert engine in design.engines
        given = dict(option.split("=") for option in options)
        assert design.complete_options(given, engine) | given
        assert text in known.explanation(queue(name, **given))


@pytest.mark.parametrize("engine", PRODUCTS)
def test_the_waits_that_the_designs_themselves_make_are_told_for_each(engine: str) -> None:
    """Who holds rows and does nothing is the most usual cause of all."""
    (idle,) = [known for known in known_waits(engine) if known.wait == "idle in transaction"]
    here = {name for name, design in DESIGNS.items() if engine in design.engines}
    assert {words.split()[0] for words in idle.by_design} == here


def test_a_design_with_an_option_goes_before_the_design() -> None:
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


def test_what_has_no_entry_of_its_own_is_told_by_its_kind() -> None:
    own = explain("postgresql", "IO", "DataFileRead", None)
    other = explain("postgresql", "IO", "SomethingNew", None)
    assert other
    assert own != other


def test_what_nobody_knows_has_no_meaning() -> None:
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


def test_no_two_entries_of_an_engine_say_the_same_wait() -> None:
    for engine in PRODUCTS:
        names = [(known.kind.lower(), known.wait.lower()) for known in known_waits(engine)]
        assert len(set(names)) == len(names)
        said = chain.from_iterable((it.kind, it.wait) for it in known_waits(engine))
        assert all(said)
