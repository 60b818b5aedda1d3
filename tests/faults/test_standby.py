"""A standby says that it is one, and how far behind, in each verb, on each version here."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from console.engines import Database, open_database
from console.features.history.recorder import Recorder
from console.monitor.sample import DatabaseSample, take_sample
from console.monitor.sampler import Reading, Sampler
from tests.cli.calls import Console, call
from tests.servers import TIMEOUTS, statements_sent, wait_until
from tests.servers.versions import LONG_VERSIONS, Pair, streaming

pytestmark = pytest.mark.slow

Verbs = Sequence[tuple[str, ...]]
READING: Verbs = (
    ("status",),
    ("status", "orders"),
    ("check",),
    ("doctor", "--idle-for", "0s"),
    ("report", "orders", "--idle-for", "0s"),
    ("messages", "orders"),
    ("errors", "work"),
    ("consumers", "orders", "--seconds", "0"),
    ("waits", "--seconds", "0"),
    ("audit",),
    ("discover",),
)
WRITING: Verbs = (
    ("push", "orders", "x"),
    ("pop", "orders"),
    ("purge", "orders", "--yes", "orders"),
    ("purge", "orders"),
    ("release", "work"),
    ("requeue", "work", "--yes"),
    ("install", "fifo", "more"),
    ("uninstall", "orders"),
    ("maintain", "orders", "--yes"),
    ("pause", "orders", "--yes", "orders"),
    ("note", "orders", "x"),
    ("ack", "error_burst", "work"),
    ("doctor", "orders", "--fix"),
    ("smoke", "fifo"),
)
"""With --yes, without, and those without a plan."""


def _is_recorded(folder: Path, source: str, *readings: Reading) -> None:
    recorder = Recorder(folder, "here")
    for reading in readings:
        recorder.reading(reading)
    recorder.close()
    shown = call("history", "orders", "--recordings", str(folder)).text
    assert shown.count(f": taken on a standby of {source}, caught up\n") == 1, shown


@pytest.fixture(scope="module", params=LONG_VERSIONS)
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    with streaming(request.param) as made:
        on_primary = Console(made.primary.url)
        on_primary.done("install", "fifo", "orders")
        on_primary.done("install", "claim", "work")
        on_primary.done("install", "pending", "later")
        on_primary.done("push", "orders", "first")
        on_primary.done("push", "work", "first")
        on_primary.done("pop", "work")
        made.primary.run("CREATE ROLE guest LOGIN")
        made.caught_up()
        yield made


@pytest.fixture
def more(long: bool) -> Verbs:
    """Those that say it of each further state."""
    return READING if long else READING[:4]


def test_a_ring_on_a_standby_lists_all_that_is_ready(pair: Pair) -> None:
    """A standby shows its sequences up to 32 ahead of what was popped."""
    on_primary = Console(pair.primary.url)
    for options, first in (("size=50", 2), ("size=50 subscribers=a,b", 1)):
        on_primary.install(f"ring {options}", "turns")
        on_primary.done("push", "turns", "-", "--lines", stdin=b"0\n1\n2\n3\n4\n")
        on_primary.done("pop", "turns", *["--subscriber", "a"] * (first == 1))
        pair.caught_up()
        listed = Console(pair.standby.url).done("messages", "turns", "--json").json["messages"]
        assert [message["number"] for message in listed] == list(range(first, 6)), options
        on_primary.done("uninstall", "turns", "--with-messages", "--yes", "turns")
    pair.caught_up()


def test_each_verb_says_what_a_standby_is_and_each_write_names_its_primary(
    pair: Pair, tmp_path: Path, more: Verbs
) -> None:
    console = Console(pair.standby.url)
    sampler = Sampler(open_database(pair.standby.url), timeouts=TIMEOUTS)
    source = f"127.0.0.1:{pair.primary.port}"
    _says(console, f"standby of {source}, caught up", lag=0.0, paused=False)
    _is_one_of_several_hosts(pair)
    assert console("check").text.startswith("DBQ OK - ")
    _refuses_writes(console, source)

    on_standby = sampler.sample()
    assert on_standby.standby is not None
    assert (on_standby.standby.lag_seconds, on_standby.promoted_at) == (0.0, None)

    pair.primary.run("SELECT later_push('x', clock_timestamp() + interval '2 s')")
    pair.caught_up()
    pair.standby.run("SELECT pg_wal_replay_pause()")
    _says(console, "replay is paused", lag=None, paused=True, verbs=more)
    checked = console("check", "--plugin")
    assert checked.status == 3
    assert checked.text.startswith("DBQ UNKNOWN - ")
    assert console("check", "--max-lag", "1h").status == 0, "it is as far as it should be"

    Console(pair.primary.url).done("push", "orders", "second")
    pair.received()
    _says(console, "behind, replay is paused", lag=None, paused=True, verbs=more)
    assert console("check", "--max-lag", "0s", "--plugin").status == 2
    assert console.done("status", "orders", "--json").json["queues"][0]["ready"] == 1

    with closing(open_database(pair.standby.url, timeouts=TIMEOUTS)) as database:
        _shows_the_moment_that_it_replayed(database)
    late = console("check", "later", "--max-overdue", "500ms", "--max-lag", "1h")
    assert late.status == 0, "due later than the moment that is shown"
    doctor = console("doctor", "--idle-for", "1s", "--json").json["queues"]
    found = {finding["severity"] for one in doctor for finding in one["findings"]}
    assert found <= {"note"}, "nothing shows that nobody consumes"
    assert {one["verdict"] for one in doctor} == {"unknown"}

    pair.standby.run("ALTER SYSTEM SET recovery_min_apply_delay = '1h'")
    pair.standby.run("SELECT pg_reload_conf()")
    pair.standby.run("SELECT pg_wal_replay_resume()")
    _says(console, " behind", lag=None, paused=False, verbs=more)
    assert console("check", "--max-lag", "1h").status == 0
    pair.standby.run("ALTER SYSTEM RESET recovery_min_apply_delay")
    pair.standby.run("SELECT pg_reload_conf()")
    pair.caught_up()
    _says(console, "caught up", lag=0.0, paused=False, verbs=more)

    pair.standby.run("SELECT pg_promote()")
    reading = sampler.sample()
    assert reading.standby is None
    assert reading.promoted_at == reading.taken_at, "noticed while the console is open"
    assert sampler.sample().promoted_at == reading.taken_at
    _is_recorded(tmp_path, source, on_standby, reading)
    for words in more:
        answer = console(*words, "--json").json
        assert answer["standby"] is None, words
        assert "standby" not in console(*words).text, words
    _reports_that_it_is_a_primary(console)


def _reports_that_it_is_a_primary(console: Console) -> None:
    """A primary reports by itself that it is one."""
    with statements_sent() as sent:
        console.done("push", "orders", "third")
    assert sent
    assert not [text for text in sent if "server.standby" in text]


def _refuses_writes(console: Console, source: str) -> None:
    for words in WRITING:
        refused = console(*words)
        assert refused.status == 4, (words, refused)
        assert f"a standby of {source}" in refused.err, (words, refused)
        assert not refused.out, words
    guest = Console(console.url.replace("postgres@", "guest@"))("push", "orders", "x")
    assert (guest.status, guest.out) == (4, b"")
    assert "a standby: it accepts no writes" in guest.err
    assert "Connect to its primary." in guest.err, "its name is not for every login"


def _is_one_of_several_hosts(pair: Pair) -> None:
    """libpq chooses, by target_session_attrs."""
    both = f"postgresql://postgres@127.0.0.1:{pair.standby.port},127.0.0.1:{pair.primary.port}"
    either = Console(f"{both}/postgres?target_session_attrs=read-write")
    either.done("push", "orders", "to whichever may be written")
    assert either.done("status", "--json").json["standby"] is None
    either.done("pop", "orders")
    preferred = Console(f"{both}/postgres?target_session_attrs=prefer-standby")
    assert preferred.done("status", "--json").json["standby"]["lag_seconds"] is not None
    pair.caught_up()


def _shows_the_moment_that_it_replayed(database: Database) -> None:
    """Nothing became older since: no age, and no claim is stuck."""

    def sampled(stuck_after_seconds: float = 1000.0) -> DatabaseSample:
        return take_sample(database, stuck_after_seconds=stuck_after_seconds)

    def claimed(sample: DatabaseSample) -> float:
        (claim,) = (claim for queue in sample.queues for claim in queue.claims or ())
        assert claim.claimed_seconds is not None
        return claim.claimed_seconds

    def lag() -> float:
        standby = sampled().standby
        return 0.0 if standby is None else standby.lag_seconds or 0.0

    before = sampled()
    wait_until(lambda: lag() > 3, "it lags 3 s")
    after = sampled(claimed(before) + 1.0)
    # The lag is read before the rows are.
    near = 0.2 + before.latency_seconds + after.latency_seconds
    assert claimed(after) == pytest.approx(claimed(before), abs=near)
    for then, now in zip(before.queues, after.queues, strict=True):
        assert then.row is not None
        assert now.row is not None
        assert (now.row.stuck or 0) == 0
        if then.row.age_seconds is None:  # what became due since, by the clock, has no age yet
            assert now.row.age_seconds in {None, 0.0}
        else:
            assert now.row.age_seconds == pytest.approx(then.row.age_seconds, abs=near)
        assert now.moment is not None
        assert then.moment is not None
        assert abs((now.moment - then.moment).total_seconds()) < 0.3 + near


def _says(
    console: Console, text: str, *, lag: float | None, paused: bool, verbs: Verbs = READING
) -> None:
    """Each of the verbs says so, in words and with --json; `lag` None: whatever it is."""

    def holds(words: tuple[str, ...]) -> bool:
        shown = console(*words).text
        lines = shown.splitlines()[1:] if words == ("check",) else [shown]
        found = console(*words, "--json").json["standby"]
        assert found["paused"] is paused, words
        assert found["receives"] is True, words
        return all(text in line for line in lines) and lag in {None, found["lag_seconds"]}

    for words in verbs:
        # What the primary's own processes write is replayed a moment later.
        wait_until(partial(holds, words), f"{words} say {text!r}", 60)
