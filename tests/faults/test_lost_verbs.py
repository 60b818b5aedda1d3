"""Every verb when its connection cannot be opened, is cut or hangs.

It ends in time with exit 3, says what to do next, and leaves nothing half done.
"""

import itertools
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from sqlalchemy import make_url

from console.features.demo.embedded import EmbeddedServer
from tests.cli.calls import Answer, call
from tests.faults.harness.connections import (
    FATES,
    LIMIT,
    LOSSES,
    Cutter,
    added_and_removed,
    held,
    make_queues,
    rows_of,
)
from tests.servers import ensure_running, fresh_database, login, value
from tests.servers.proxy import Fate, Proxy

HASTY = {"DBQ_CONNECT_TIMEOUT": "1s", "DBQ_STATEMENT_TIMEOUT": "1s", "DBQ_LOCK_TIMEOUT": "500ms"}
READING = (
    "status",
    "status mail",
    "check",
    "messages mail",
    "errors mail",
    "waits --seconds 0",
    "doctor",
    "audit",
    "report mail",
    "discover",
    "roles",
)
CHANGING = (
    "push mail x",
    "push orders - --lines",
    "pop mail --count 3 --complete",
    "pop orders --count 3",
    "pop lines --count 3",
    "requeue mail --batch 1 --yes",
    "purge mail --batch 2 --yes mail",
    "release mail --force --yes mail",
    "maintain mail --yes",
    "relay orders --yes orders",
    "install fifo another",
    "uninstall lines --with-messages --yes lines",
)
VERBS = READING + CHANGING
LINES = b"1\n2\n3\n"

pytestmark = pytest.mark.usefixtures("short_pauses")


@pytest.fixture(scope="module")
def url(module_server: EmbeddedServer) -> Iterator[str]:
    """A database with queues, on a server that tests may stop."""
    ensure_running(module_server)
    with fresh_database(module_server.url) as url, ExitStack() as at_the_end:
        at_the_end.callback(ensure_running, module_server)
        make_queues(url)
        yield url


def run(verb: str, url: str) -> tuple[Answer, float]:
    """Run the verb with that URL; its result and duration."""
    began = time.monotonic()
    answer = call(*verb.split(), stdin=LINES, environment={"DBQ_URL": url, **HASTY})
    return answer, time.monotonic() - began


def check_lost(answer: Answer) -> None:
    """The error says what happened, why, and what to do next."""
    assert answer.status == 3, answer
    assert "Traceback" not in answer.err
    assert len(answer.err.strip().splitlines()) >= 3, answer.err


# Connections that cannot be opened.

RUNS = "Check that the server runs"
FAULTS = {
    **dict.fromkeys(("down", "paused", "refused", "frozen"), RUNS),
    "expired": "neither has expired",
    "crowded": "Close other sessions",
    "dropped": "Check the database's name",
}
"""And what the error says."""
_ROLES = {"expired": "VALID UNTIL '2020-01-01'", "crowded": "CONNECTION LIMIT 0"}


@contextmanager
def during(fault: str, server: EmbeddedServer, url: str) -> Iterator[str]:
    """The URL during the fault."""
    if fault in _ROLES:
        with login(url, f"ALTER ROLE {{}} PASSWORD 'secret' {_ROLES[fault]}") as theirs:
            yield make_url(theirs).set(password="secret").render_as_string(hide_password=False)
    elif fault == "dropped":
        yield make_url(url).set(database="dbq_test_gone").render_as_string(hide_password=False)
    elif fault in {"down", "paused"}:
        down = (server.shut_down, server.restart), (server.pause, server.resume)
        with held(*down[fault == "paused"]):
            yield url
    else:
        with Proxy(url) as proxy, LOSSES["cut" if fault == "refused" else "silent"](proxy):
            yield proxy.url


@pytest.mark.parametrize("fault", FAULTS)
def test_a_failed_connection_is_an_error_with_the_next_step(
    own_server: EmbeddedServer, url: str, fault: str, *, long: bool
) -> None:
    quick = fault not in {"paused", "frozen"}
    verbs = VERBS if long or fault == "refused" else ("status", "push mail x")[: 1 + quick]
    with during(fault, own_server, url) as broken:
        for verb in verbs:
            answer, seconds = run(verb, broken)
            check_lost(answer)
            assert FAULTS[fault] in answer.err, answer.err
            assert "secret" not in answer.err
            assert seconds < LIMIT, verb


# Connections that are lost during a verb.


def check_kept(verb: str, answer: Answer, before: Counter[str], after: Counter[str]) -> None:
    """The queues contain what the verb reports; in doubt, all of it or nothing."""
    more, less = added_and_removed(before, after)
    doubt = "doubt" in answer.err.lower()
    name = verb.partition(" ")[0]
    if name == "push":
        count = 3 if "--lines" in verb else 1
        assert less == 0
        assert more == count if answer.status == 0 else more in ({0, count} if doubt else {0})
    elif name == "pop":
        popped = len(answer.out.splitlines())
        assert more == 0
        if answer.status == 0:
            # Messages that are claimed and not completed stay.
            assert less == popped
        else:
            # Fewer than requested: these are printed and removed; the loss came while popping more.
            ran_dry = 0 < popped < 3
            assert less in ({0, popped} if doubt or ran_dry or "mail" in verb else {0})
    elif name != "uninstall":
        assert (more, less) == (0, 0)


def cut_off(verb: str, url: str, pieces: int, fate: Fate, *, heals: bool) -> bool:
    """Cut the verb's connection after `pieces` packets; whether it sent that many."""
    with Proxy(url) as proxy:
        cutter = Cutter(pieces, fate, (lambda: None) if heals else proxy.shut)
        proxy.fate = cutter
        checked = "uninstall" not in verb or has_lines(url)
        before = rows_of(url) if checked else Counter[str]()
        answer, seconds = run(verb, proxy.url)
        happened = cutter.happened
    assert seconds < LIMIT, (verb, pieces, fate)
    assert "Traceback" not in answer.err
    if answer.status not in (0, 1) or not happened:
        # A loss after the complete response has no effect.
        assert answer.status == (3 if happened else answer.status), answer
    if answer.status == 3:
        check_lost(answer)
    if checked and has_lines(url):
        check_kept(verb, answer, before, rows_of(url))
    return happened


def has_lines(url: str) -> bool:
    return value(url, "SELECT to_regclass('lines') IS NOT NULL") is True


@pytest.mark.long
@pytest.mark.parametrize("heals", [True, False])
@pytest.mark.parametrize("fate", FATES, ids=lambda fate: fate.name)
@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_cut_off_at_any_packet_loses_nothing(
    queues_url: str, verb: str, fate: Fate, heals: bool
) -> None:
    for pieces in itertools.count():
        if not cut_off(verb, queues_url, pieces, fate, heals=heals):
            break
        assert pieces < 500


@pytest.mark.parametrize("verb", ["push mail x", "pop lines --count 3", "purge mail --yes mail"])
def test_a_verb_cut_off_at_some_packets_loses_nothing(queues_url: str, verb: str) -> None:
    for number, pieces in enumerate((4, 7, 10, 13)):
        cut_off(verb, queues_url, pieces, FATES[number % 2], heals=number < 2)


@pytest.mark.parametrize(
    "verb",
    [pytest.param(verb, marks=() if verb == "push mail x" else pytest.mark.long) for verb in VERBS],
)
def test_a_verb_whose_connection_hangs_ends_in_time(
    queues_url: str, verb: str, *, long: bool
) -> None:
    for pieces in (2, 5, 8, 11, 14) if long else (6,):
        cut_off(verb, queues_url, pieces, Fate.FROZEN, heals=False)
