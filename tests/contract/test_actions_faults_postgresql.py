"""Actions when the database is not what it should be: nothing half done, nothing lost."""

import threading
from collections import Counter

import pytest
from sqlalchemy import text

from console.actions import execute, plan
from console.actions.execute import Control, Pace, Progress
from console.audit import ImbalanceError
from console.engines import Timeouts, open_database
from console.errors import BusyError, ConnectionFailedError, RefusedError
from console.monitor.errors import error_groups
from tests.contract.client import Client
from tests.contract.conftest import Use
from tests.contract.filled import seen
from tests.contract.test_actions import contents, entries, mover, planned
from tests.contract.variants import DEFAULTS
from tests.proxy import Proxy

CLAIM = next(variant for variant in DEFAULTS if variant.design.name == "claim")
MESSAGES = 60


@pytest.fixture
def client(use_postgresql: Use) -> Client:
    """A claim queue full of ready messages."""
    made = use_postgresql(CLAIM)
    made.push_many(made.payloads(*range(MESSAGES)))
    return made


def sql_of(client: Client, statement: str) -> None:
    with client.database.transaction("prepare") as connection:
        connection.execute(text(statement.replace(":", "\\:")))


def test_an_imbalance_undoes_the_batch_and_stops(client: Client) -> None:
    """Somebody's trigger swallows every tenth row on its way into the archive."""
    archive = f'public."{client.queue.name}_archive"'
    sql_of(
        client,
        "CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS "
        "$$BEGIN IF new.archive_id % 10 = 0 THEN RETURN NULL; END IF; RETURN new; END$$",
    )
    sql_of(
        client,
        f"CREATE TRIGGER t BEFORE INSERT ON {archive} FOR EACH ROW EXECUTE FUNCTION swallow()",
    )
    moving = mover(client, "purge")
    made = plan.make(client.database, moving)
    with pytest.raises(ImbalanceError, match="DOES NOT BALANCE"):
        execute.execute(client.database, moving, made, pace=Pace(batch=4))
    found = contents(client)
    assert found["ready"] + found["archived"] == MESSAGES
    assert found["archived"] == 8, "the two batches before it stay done"
    told = next(entry for entry in entries(client) if entry.verb == "purge")
    assert (told.outcome, told.done) == ("failed", 8)
    assert "BALANCE" in told.detail


def test_a_table_that_is_locked_is_waited_for_and_given_up(client: Client) -> None:
    url = client.url
    hasty = open_database(url, timeouts=Timeouts(lock_seconds=0.05))
    impatient = Client(hasty, client.queue)
    moving = mover(impatient, "purge")
    made = plan.make(hasty, moving)
    control = Control()
    with client.database.transaction("lock") as connection:
        connection.execute(text(f'LOCK TABLE public."{client.queue.name}" IN EXCLUSIVE MODE'))
        threading.Timer(0.3, control.stop).start()
        with pytest.raises(BusyError):
            execute.execute(hasty, moving, made, control=control)
    assert contents(client) == Counter(ready=MESSAGES)
    again = execute.execute(hasty, moving, plan.make(hasty, moving))
    assert again.ledger.out == MESSAGES
    hasty.close()


def test_another_error_in_its_place_is_not_of_the_kind(client: Client) -> None:
    """Whoever writes an error by hand leaves the attempts as they were: the text tells."""
    for number, taken in enumerate(client.pop_many(3)):
        client.fail(taken, f"no route to host {number}")
    (group,) = error_groups(client.database, client.queue).groups
    moving = mover(client, "requeue")
    made = planned(client, moving, f"error-group={group.key}")
    sql_of(
        client,
        f"UPDATE public.\"{client.queue.name}\" SET errors = errors || '!' "
        "WHERE errors = 'no route to host 1'",
    )
    done = execute.execute(client.database, moving, made)
    assert (made.count, done.ledger.out, done.ledger.skipped_count) == (3, 2, 1)
    assert [m.error for m in seen(client, "state=error").messages] == ["no route to host 1!"]


def test_what_others_hold_is_skipped(client: Client) -> None:
    moving = mover(client, "purge")
    made = plan.make(client.database, moving)
    with client.database.transaction("hold") as connection:
        connection.execute(
            text(f'SELECT FROM public."{client.queue.name}" ORDER BY created_at LIMIT 7 FOR UPDATE')
        )
        done = execute.execute(client.database, moving, made, pace=Pace(batch=10))
    assert (done.ledger.out, done.ledger.skipped_count) == (MESSAGES - 7, 7)
    assert contents(client) == Counter(ready=7, archived=MESSAGES - 7)


def test_a_cut_connection_ends_it_and_the_same_again_finishes_it(client: Client) -> None:
    with Proxy(client.url) as proxy:
        far = open_database(proxy.url)
        distant = Client(far, client.queue)
        moving = mover(distant, "purge")
        made = plan.make(far, moving)

        def cut(now: Progress) -> None:
            if now.batches == 3:
                proxy.cut()

        with pytest.raises(ConnectionFailedError):
            execute.execute(far, moving, made, pace=Pace(batch=5), progress=cut)
        far.close()
    found = contents(client)
    assert found["ready"] + found["archived"] == MESSAGES
    done = next(entry for entry in entries(client) if entry.verb == "purge").done
    assert done == found["archived"] >= 15
    moving = mover(client, "purge")
    again = execute.execute(client.database, moving, plan.make(client.database, moving))
    assert again.ledger.out == MESSAGES - done
    assert contents(client) == Counter(archived=MESSAGES)


def test_an_action_that_somebody_ended_in_the_audit_stops(client: Client) -> None:
    moving = mover(client, "purge")
    made = plan.make(client.database, moving)

    def end(now: Progress) -> None:
        if now.batches == 2:
            sql_of(client, "UPDATE dbq.action SET ended_at = now() WHERE ended_at IS NULL")

    with pytest.raises(RefusedError, match="no longer running"):
        execute.execute(client.database, moving, made, pace=Pace(batch=5), progress=end)
    assert contents(client) == Counter(ready=MESSAGES - 10, archived=10)
