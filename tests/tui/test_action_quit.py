"""Ctrl-Q while an action runs: the terminal is back at once, the batch ends, the rest is left."""

import re

from console import audit
from console.actions.execute import Control
from console.actions.pop import fail, pop_many
from console.actions.push import push_many
from console.rights import Rights
from console.verbs import get_verb
from console.verbs.verb import Target, values_from_texts
from tests.servers import connect, wait_until
from tests.tui.acting import database_at, make
from tests.tui.test_terminal import spawn

COUNT = 900
_BEGUN = "SELECT 1 FROM dbq.action WHERE outcome = 'running' AND done > 0"
_WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"


def test_it_stops_after_its_batch_and_the_same_again_finishes_it(database_url: str) -> None:
    with database_at(database_url) as database:
        queue = make(database, "mail", "claim", {})
        with database.transaction("fill") as connection:
            connection.exec_driver_sql("DELETE FROM mail")
            push_many(connection, queue, [f"m{n}" for n in range(COUNT)])
            for message in pop_many(connection, queue, COUNT):
                assert fail(connection, queue, message, "boom")
        console = spawn(database_url)
        console.expect(f" {COUNT} ")
        # The dialog begins at requeue; in its form: batches of 10, 100 a second.
        console.send("a")
        console.expect("return errors")
        console.send("\r")
        console.expect("Enter makes the plan")
        console.send("\t\t\t10\t100\r")
        console.expect("type y and press Enter")
        console.send("y\r")
        console.expect("of 900")
        with connect(database_url) as looking:
            wait_until(lambda: looking.execute(_BEGUN).fetchone() is not None, "a batch")
        with connect(database_url) as other:
            other.execute("BEGIN")
            assert other.execute(f"{_BEGUN} FOR UPDATE").fetchone() is not None
            with connect(database_url) as looking:
                wait_until(
                    lambda: looking.execute(_WAITING).fetchone() == (1,), "a batch that is kept out"
                )
            console.send("\x11")
            console.expect(re.escape("\x1b[?1049l"))
            assert console.isalive(), "it did not wait for its batch"
            other.execute("ROLLBACK")
        console.expect("stopped, action")
        console.expect(re.compile(r"(\d+) of 900 done, 0 skipped, 0 failed"))
        done = int(console.match.group(1))
        console.wait()
        assert console.exitstatus == 0
        assert 0 < done < COUNT
        assert states_of(database_url) == {"ready": done, "error": COUNT - done}
        with database.transaction("look", read_only=True) as connection:
            (entry,) = audit.entries(connection, audit.EntryFilter(verb="requeue"))
        assert (entry.outcome, entry.done, entry.planned) == ("stopped", done, COUNT)
        requeue = get_verb("requeue")
        rest = requeue.plan(Target(database, queue, Rights.ADMIN), values_from_texts(requeue, {}))
        assert rest.count == COUNT - done
        ended = rest.run(Control(), lambda _: None)
        assert ended.ledger is not None
        assert ended.ledger.out == COUNT - done
        assert states_of(database_url) == {"ready": COUNT}


def states_of(url: str) -> dict[str, int]:
    """Counted by the table itself."""
    with connect(url) as connection:
        rows = connection.execute(
            "SELECT CASE WHEN errors IS NULL THEN 'ready' ELSE 'error' END, count(*), "
            "count(DISTINCT id), count(DISTINCT attempts) FROM mail GROUP BY 1"
        ).fetchall()
    assert all(count == distinct and attempts == 1 for _, count, distinct, attempts in rows)
    return {state: count for state, count, _, _ in rows}
