"""`prove` on each engine at hand: every claim holds there, and no queue but its own is touched."""

import pytest

from console import catalog
from console.designs import DESIGNS
from console.engines import Database
from console.errors import UsageError
from console.prove import run
from console.prove.run import NOT_TRIED, Proof, claims_of, prove_claim
from console.prove.trial import Line, Outcome, Trial
from tests.contract.client import Client
from tests.contract.conftest import Use
from tests.contract.variants import Variant

SHORT = ("ring:in_hand=on:content=apart", "fifo:order=strict", "split")
"""So every claim is proven of one of them."""
WHOLE = [
    *DESIGNS,
    *("split:dequeue=two_step", "ring:in_hand=on", "ring:content=apart", "ring:subscribers=a,b"),
]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine is no defect."""
    monkeypatch.setattr(run, "MOST_SECONDS", 3600.0)


@pytest.mark.parametrize(
    "words",
    [*SHORT, *(pytest.param(one, marks=pytest.mark.long) for one in WHOLE if one not in SHORT)],
)
def test_every_claim_holds_and_no_other_queue_is_touched(
    database: Database, use: Use, words: str
) -> None:
    of = DESIGNS[words.partition(":")[0]]
    if database.product.name not in of.engines:
        pytest.skip("this engine has no such design")
    other = use(Variant(DESIGNS["fifo"], {}))
    other.push_many(other.payloads(0, 1, 2))
    before = queues_of(other)

    lines = list(Proof(database, database.product.default_schema, print).run(words))

    failed = [line for line in lines if line.outcome is Outcome.FAILED]
    assert failed == []
    assert all(line.evidence for line in lines)
    assert {line.design for line in lines} == {words}
    for line in lines[1:-1] if "subscribers" in words else ():
        assert line.outcome is not Outcome.PROVEN or of_both(line), line
    assert NOT_TRIED not in {line.evidence for line in lines}
    assert queues_of(other) == before
    assert [one.payload for one in other.drain()] == other.payloads(0, 1, 2)


def queues_of(client: Client) -> list[str]:
    with client.database.transaction("look") as connection:
        return [queue.label for queue in catalog.queues(connection)]


def of_both(line: Line) -> bool:
    """Whether it was tried with each of the two subscribers."""
    return line.evidence.startswith("a: ") and "; b: " in line.evidence


def test_a_claim_is_put_to_each_subscriber_in_turn(use: Use) -> None:
    client = use(Variant(DESIGNS["ring"], {"subscribers": "a,b", "size": "100"}))
    with client.database.transaction("look") as connection:
        queue = catalog.find(connection, client.queue.name, client.queue.schema)
    for claim in claims_of(client.database, queue)[:4]:
        line = prove_claim("", claim, Trial(client.database, queue))
        assert (line.outcome, of_both(line)) == (Outcome.PROVEN, True), line


def test_of_each_claim_some_design_is_proven(database: Database) -> None:
    """Which of them apply is known without a proof."""
    queues = [
        Variant(DESIGNS[name], dict(option.split("=") for option in options)).queue("s", "q")
        for name, *options in (words.split(":") for words in SHORT)
    ]
    everything = {one.text: one for queue in queues for one in claims_of(database, queue)}
    for claim in everything.values():
        assert any(not claim.lacks(queue) for queue in queues), claim.text


def test_time_that_is_over_is_told_and_nothing_is_left(database: Database) -> None:
    proof = Proof(database, database.product.default_schema, print, most_seconds=-1.0)
    *untried, last = proof.run("fifo")
    assert [line.evidence for line in untried] == [NOT_TRIED] * len(untried)
    assert last.outcome is Outcome.PROVEN


def test_a_design_that_there_is_not(database: Database) -> None:
    proof = Proof(database, database.product.default_schema, print)
    with pytest.raises(UsageError, match="fiof"):
        next(proof.run("fiof"))
