"""Every verb of every design, from what its form says to what its ledger says: without a screen."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from console.actions.adopt import adopt
from console.actions.availability import unavailable
from console.actions.execute import Control
from console.actions.pop import pop_many
from console.audit import Ledger, Outcome
from console.catalog import Queue
from console.designs import design
from console.engines import Database
from console.errors import RefusedError, UsageError
from console.rights import Rights
from console.verbs import all_verbs, get_verb
from console.verbs.verb import Plan, Result, Target, values_from_texts
from tests.tui.acting import CLAIMED, DONE, FAILED, READY, database_at, make, states

DESIGNS: dict[str, dict[str, str]] = {
    "naive": {},
    "ring": {"in_hand": "on", "size": "40"},
    "heap": {},
    "fifo": {},
    "stack": {},
    "pending": {},
    "claim": {},
    "status": {},
    "split": {},
}
SHORT = ("ring", "claim")
"""The others with --long: how a verb does it is proven in `contract`."""
MOVING = ("release", "requeue", "archive", "purge", "restore")


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    with database_at(database_url) as found:
        yield found


def plan(database: Database, queue: Queue, verb: str, **said: str) -> Plan:
    """As a screen makes it of what stands in its fields."""
    of, texts = get_verb(verb), {name.replace("_", "-"): text for name, text in said.items()}
    for parameter in of.parameters:
        parameter.check(texts.get(parameter.name, parameter.default))
    return of.plan(Target(database, queue, Rights.ADMIN), values_from_texts(of, texts))


def do(database: Database, queue: Queue, verb: str, **said: str) -> Result:
    """Planned and done; what the plan counted is what the ledger has."""
    before = states(database, queue)
    made = plan(database, queue, verb, **said)
    assert states(database, queue) == before, "a plan changes nothing"
    assert not made.obstacles
    ended = made.run(Control(), lambda _: None)
    assert ended.outcome is Outcome.DONE, ended
    if verb in MOVING:
        assert made.needed
        assert ended.ledger is not None
        assert ended.ledger.balanced
        assert ended.ledger.out == made.count
    return ended


@pytest.mark.parametrize(
    "of", [of if of in SHORT else pytest.param(of, marks=pytest.mark.long) for of in DESIGNS]
)
def test_each_verb_does_what_its_plan_says(database: Database, of: str, tmp_path: Path) -> None:
    queue = make(database, of, of, DESIGNS[of])
    keeps = "claimed" in queue.states
    had = Counter({"ready": READY})
    if keeps:
        had |= Counter({"claimed": CLAIMED, "error": FAILED})
        had |= Counter({"done": DONE} if "done" in queue.states else {})
    assert states(database, queue) == had
    do(database, queue, "push", payload="one more")
    do(database, queue, "pop", file=str(tmp_path / "popped"), complete="yes" if keeps else "")
    assert len((tmp_path / "popped").read_bytes().splitlines()) == 1
    if keeps:
        do(database, queue, "requeue", filter="limit=2")
        do(database, queue, "release", force="yes")
        assert states(database, queue)["claimed"] == 0
        do(database, queue, "archive", reason="tidy")
    do(database, queue, "purge", reason="[bold]", batch="3", canary="yes")
    assert set(states(database, queue)) <= {"done"}
    do(database, queue, "restore", rate="1000")
    assert states(database, queue)["ready"] > 0
    if "resize" in queue.verbs:
        do(database, queue, "resize", size="60")
        do(database, queue, "relay")
    do(database, queue, "maintain")
    do(database, queue, "upgrade")
    gone = plan(database, queue, "uninstall", **{"with-messages": "yes"})
    assert gone.count == sum(states(database, queue).values()) + archived(gone)
    ended = gone.run(Control(), lambda _: None)
    assert (ended.outcome, ended.queue_removed) == (Outcome.DONE, True)


def archived(gone: Plan) -> int:
    """What the plan says of the archive."""
    (line,) = (line for line in gone.lines if "archived messages" in line)
    return int(line.split()[0])


def test_what_a_design_or_an_option_lacks_is_said(database: Database) -> None:
    queue = make(database, "mail", "fifo", {})
    assert unavailable(queue, "release").startswith("it has no claims")
    assert unavailable(queue, "resize") == "the design fifo has no resize"
    assert not unavailable(queue, "purge")
    purge = get_verb("purge")
    with pytest.raises(RefusedError, match="needs the right operator"):
        purge.plan(Target(database, queue, Rights.READ_ONLY), values_from_texts(purge, {}))
    target = Target(database, queue, Rights.OPERATOR)
    with pytest.raises(RefusedError, match="needs the right admin"):
        purge.plan(target, values_from_texts(purge, {"permanently": "yes"}))
    with pytest.raises(UsageError, match="No session holds rows"):
        plan(database, queue, "end-session")
    for verb in all_verbs():
        wanting = verb.name in {"end-session", "pop", "push"} or any(
            one.required for one in verb.parameters
        )
        if not unavailable(queue, verb.name) and not wanting:
            plan(database, queue, verb.name)


def test_of_somebody_elses_table_only_what_its_columns_give(database: Database) -> None:
    with database.transaction("make a table") as connection:
        connection.exec_driver_sql(
            "CREATE TABLE jobs (job bigint PRIMARY KEY, started timestamptz, body text)"
        )
        connection.exec_driver_sql(
            "INSERT INTO jobs SELECT n, null, 'x' FROM generate_series(1, 9) AS n"
        )
    roles = {"id": "job", "claimed_at": "started", "payload": "body"}
    queue = adopt(database, "public", "jobs", design("claim"), roles)
    can = {verb.name for verb in all_verbs() if not unavailable(queue, verb.name)}
    of_its_entry = {"protect", "unprotect", "note", "forget"}
    of_findings = {"doctor", "silence", "ack", "unsilence"}
    assert can == {"release", "end-session", "purge", "maintain", *of_findings, *of_its_entry}
    assert unavailable(queue, "requeue") == "it was adopted without a column for the role error"
    assert "other programs" in unavailable(queue, "push")
    with pytest.raises(RefusedError, match="has no archive"):
        plan(database, queue, "purge")
    gone = plan(database, queue, "purge", permanently="yes", filter="state=ready")
    assert gone.run(Control(), lambda _: None).ledger == Ledger(9, 9, 9)
    assert plan(database, queue, "forget").run(Control(), lambda _: None).outcome is Outcome.DONE


def test_what_cannot_be_written_stays_in_the_queue(database: Database, tmp_path: Path) -> None:
    queue = make(database, "mail", "fifo", {})
    made = plan(database, queue, "pop", file=str(tmp_path / "nowhere" / "file"), count="3")
    with pytest.raises(UsageError, match="cannot be written"):
        made.run(Control(), lambda _: None)
    assert states(database, queue)["ready"] == READY
    with pytest.raises(UsageError, match="keeps no popped messages"):
        plan(database, queue, "pop", file="x", complete="yes")


@pytest.mark.thinned(4)
@pytest.mark.parametrize("verb", ["complete", "fail"])
@pytest.mark.parametrize(
    "name", [*(n for n in DESIGNS if n in {"ring", "claim", "status", "split"})]
)
def test_claims_are_finished_by_their_ids(database: Database, name: str, verb: str) -> None:
    """As many as are named; one that is not claimed is skipped, and told."""
    queue = make(database, "mail", name, DESIGNS[name])
    with database.transaction("look") as connection:
        (one, *_) = pop_many(connection, queue, 1)
    before = states(database, queue)
    error = {"error": "no 'good'"} if verb == "fail" else {}
    made = plan(database, queue, verb, id=f"{one.id} {one.id}", attempts="9", **error)
    assert made.run(Control(), lambda _: None).ledger == Ledger(
        1, skipped={"not claimed (any more)": 1}
    )
    assert states(database, queue) == before
    ended = plan(database, queue, verb, id=one.id, **error).run(Control(), lambda _: None)
    assert ended.ledger == Ledger(1, 1, 1)
    assert states(database, queue)["claimed"] == before["claimed"] - 1
