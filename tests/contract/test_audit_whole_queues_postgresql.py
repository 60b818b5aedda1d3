"""Verbs on whole queues: each is audited, in its own transaction, and in the local file."""

import json
from contextlib import closing

import pytest

from console.actions.forget import forget
from console.actions.install import install, uninstall
from console.actions.relay import relay
from console.catalog import audit
from console.catalog.audit import ImbalanceError
from console.designs import DESIGNS
from console.engines import Database, open_database
from console.errors import RefusedError, UsageError
from console.features.presets.adopt import adopt
from tests.contract.installs import installed
from tests.contract.variants import Variant
from tests.servers import connect, execute, login

RING = Variant(DESIGNS["ring"], {"size": "10"})
FIFO = Variant(DESIGNS["fifo"], {})


def entries(database: Database) -> list[audit.Entry]:
    """The audit's entries, oldest first."""
    with database.transaction("read", read_only=True) as connection:
        return audit.entries(connection, audit.EntryFilter())[::-1]


def lines() -> list[dict[str, object]]:
    return [json.loads(line) for line in audit.local_file().read_text().splitlines()]


def test_each_verb_is_audited_and_its_row_outlives_the_queue(new_database: Database) -> None:
    client = installed(new_database, RING, "ring")
    client.push_many(client.payloads(0, 1, 2))
    relay(new_database, client.queue, None)
    relay(new_database, client.queue, 20)
    uninstall(new_database, client.queue, keep_archive=False, with_messages=True)
    execute(client.url, "CREATE TABLE theirs (id bigint, body text)")
    adopted = adopt(
        new_database, "public", "theirs", DESIGNS["heap"], {"id": "id", "payload": "body"}
    )
    forget(new_database, adopted)

    found = entries(new_database)
    verbs = ["install", "relay", "resize", "uninstall", "adopt", "forget"]
    assert [entry.verb for entry in found] == verbs
    assert {entry.outcome for entry in found} == {"done"}
    assert all(entry.ended_at is not None for entry in found)
    assert [entry.done for entry in found] == [0, 3, 3, 0, 0, 0]
    assert found[2].detail == "10 slots before, 20 after, 3 live"
    assert "3 live" in found[3].detail
    ours = [line for line in lines() if line["connection"] == new_database.label]
    assert [(line["verb"], line["outcome"]) for line in ours] == [(verb, "done") for verb in verbs]
    assert [line["action_id"] for line in ours] == [entry.action_id for entry in found]


def test_refused_verbs_are_in_the_local_log_but_not_in_the_database(new_database: Database) -> None:
    client = installed(new_database, RING, "ring")
    client.push_many(client.payloads(*range(5)))
    with pytest.raises(RefusedError, match="Drain 3 messages"):
        relay(new_database, client.queue, 2)
    with pytest.raises(UsageError):
        install(new_database, client.queue)
    assert [entry.verb for entry in entries(new_database)] == ["install"]
    last = [line for line in lines() if line["connection"] == new_database.label][-1]
    assert (last["verb"], last["outcome"]) == ("resize", "refused")


def test_a_relay_that_does_not_balance_is_rolled_back(new_database: Database) -> None:
    """A trigger discards one message on its way to the new slot."""
    client = installed(new_database, RING, "ring")
    client.push_many(client.payloads(*range(5)))
    with connect(client.url) as connection:
        connection.execute(
            """CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF NEW.first_id = 3 AND OLD.message_id IS DISTINCT FROM 3 THEN
                NEW.reference_count := 0; NEW.message := NULL;
            END IF;
            RETURN NEW; END $$"""
        )
        connection.execute(
            "CREATE TRIGGER swallow BEFORE UPDATE ON ring FOR EACH ROW EXECUTE FUNCTION swallow()"
        )
    with pytest.raises(ImbalanceError, match="DOES NOT BALANCE"):
        relay(new_database, client.queue, None)
    assert [entry.verb for entry in entries(new_database)] == ["install"]
    assert len(client.drain()) == 5


@pytest.mark.parametrize("audited", [True, False])
def test_a_login_that_cannot_write_the_audit_is_refused_with_advice(
    new_database: Database, audited: bool
) -> None:
    """The login may not write the catalog's audit, or the catalog has none."""
    client = installed(new_database, FIFO, "theirs")
    if not audited:
        execute(client.url, "DROP TABLE dbq.action")
    grants = (
        "GRANT USAGE ON SCHEMA dbq TO {}",
        "GRANT SELECT, INSERT ON dbq.queue, dbq.setting TO {}",
        "GRANT CREATE ON SCHEMA public TO {}",
    )
    with login(client.url, *grants) as url, closing(open_database(url)) as restricted:
        with pytest.raises(RefusedError, match="audit") as refused:
            installed(restricted, FIFO)
        assert "dbq-console upgrade" in refused.value.next_step
        assert [entry.queue for entry in entries(new_database)] == (["theirs"] if audited else [])
