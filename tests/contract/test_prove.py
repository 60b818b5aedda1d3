"""`prove` on each available engine: every claim holds, and only scratch queues are changed.

On PostgreSQL: a defect fails its claim, for each kind of claim; leftovers of a killed proof are
dropped by the next.
"""

import itertools
import re
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from sqlalchemy import text

from console import catalog
from console.actions.install import install, remove, scratch_queue
from console.catalog import Queue, audit
from console.designs import DESIGNS
from console.doctor.finding import Diagnosis
from console.engines import Database, open_database
from console.errors import ConsoleError, UsageError
from console.features.bench.candidate import PROOF_PREFIX
from console.features.prove import run, trial
from console.features.prove.run import (
    INSTALLS,
    LEAVES_NOTHING,
    NOT_TRIED,
    Proof,
    claims_of,
    prove_claim,
)
from console.features.prove.trial import Claim, Line, Outcome, Trial
from console.plan import Result
from tests.cli.calls import Console
from tests.contract.client import Client
from tests.contract.conftest import Use
from tests.contract.variants import Variant
from tests.servers import PATIENCE_SECONDS, value, wait_until

pytestmark = pytest.mark.slow

SHORT_SPECS = ("ring:in_hand=on:content=apart", "fifo:order=strict", "split")
"""Each claim applies to one of these."""
ALL_SPECS = [
    *DESIGNS,
    *("split:dequeue=two_step", "ring:in_hand=on", "ring:content=apart", "ring:subscribers=a,b"),
]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow for a slow machine."""
    monkeypatch.setattr(run, "MOST_SECONDS", 3600.0)


@pytest.mark.parametrize(
    "words",
    [
        *SHORT_SPECS,
        *(pytest.param(one, marks=pytest.mark.long) for one in ALL_SPECS if one not in SHORT_SPECS),
    ],
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
        assert line.outcome is not Outcome.PROVEN or proven_for_both(line), line
    assert NOT_TRIED not in {line.evidence for line in lines}
    assert queues_of(other) == before
    assert [one.payload for one in other.drain()] == other.payloads(0, 1, 2)


def queues_of(client: Client) -> list[str]:
    with client.database.transaction("look") as connection:
        return [queue.label for queue in catalog.queues(connection)]


def proven_for_both(line: Line) -> bool:
    """Whether it was tested for each of the two subscribers."""
    return line.evidence.startswith("a: ") and "; b: " in line.evidence


def test_a_claim_is_tested_for_each_subscriber(use: Use) -> None:
    client = use(Variant(DESIGNS["ring"], {"subscribers": "a,b", "size": "100"}))
    with client.database.transaction("look") as connection:
        queue = catalog.find(connection, client.queue.name, client.queue.schema)
    for claim in claims_of(client.database)[:2]:
        line = prove_claim("", claim, Trial(client.database, queue))
        assert (line.outcome, proven_for_both(line)) == (Outcome.PROVEN, True), line


def test_each_claim_applies_to_some_design(database: Database) -> None:
    """Which claims apply is known without a proof."""
    queues = [
        Variant(DESIGNS[name], dict(option.split("=") for option in options)).queue("s", "q")
        for name, *options in (words.split(":") for words in SHORT_SPECS)
    ]
    for claim in claims_of(database):
        assert any(not claim.lacks(queue) for queue in queues), claim.text


def test_claims_without_time_left_are_reported_and_nothing_is_left_behind(
    database: Database,
) -> None:
    proof = Proof(database, database.product.default_schema, print, most_seconds=-1.0)
    *untried, last = proof.run("fifo")
    assert [line.evidence for line in untried] == [NOT_TRIED] * len(untried)
    assert last.outcome is Outcome.PROVEN


def test_an_unknown_design_is_refused(database: Database) -> None:
    proof = Proof(database, database.product.default_schema, print)
    with pytest.raises(UsageError, match="fiof"):
        next(proof.run("fiof"))


PREFIX = PROOF_PREFIX.replace("_", "\\_")
STORE_TWICE = """
    CREATE FUNCTION public."twice {q}"() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF pg_trigger_depth() = 1 THEN
            INSERT INTO public."{q}" (payload) VALUES (NEW.payload);
        END IF;
        RETURN NEW;
    END $$;
    CREATE TRIGGER twice AFTER INSERT ON public."{q}"
    FOR EACH ROW EXECUTE FUNCTION public."twice {q}"();
"""
"""Each message is stored twice."""
IGNORE = """
    CREATE FUNCTION public."stays {q}"() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        RETURN NULL;
    END $$;
    CREATE TRIGGER stays BEFORE {when} ON public."{table}"
    FOR EACH ROW EXECUTE FUNCTION public."stays {q}"();
"""
"""Nothing is done, without an error."""
NO_DELETE = IGNORE.replace("{table}", "{q}").replace("{when}", "DELETE")
NO_ARCHIVE = IGNORE.replace("{table}", "{q}_archive").replace("{when}", "INSERT")
NO_PARKING = IGNORE.replace("{table}", "{q}_parked").replace("{when}", "INSERT")
WRONG_SIZE = 'UPDATE public."{q}_config" SET size = size + 1'
NEWEST_FIRST = r"s/ORDER BY (head|p)\.id/ORDER BY \1.id DESC/"
UPDATE_INSTEAD = "s/DELETE FROM (.+?) AS m/UPDATE \\1 AS m SET pushed_at = m.pushed_at/"
TWO_ATTEMPTS = r"s/, 1 FROM popped/, 2 FROM popped/"
RETURN_A_ROW = "s/BEGIN\n/BEGIN\n RETURN QUERY SELECT 0::bigint, '0'::text, now(), 1;\n/"

DEFECTS = [
    ("fifo", RETURN_A_ROW, "an empty queue"),
    ("fifo", NEWEST_FIRST, "every message once"),
    ("ring", WRONG_SIZE, "a full queue"),
    ("fifo", TWO_ATTEMPTS, "a pop that is rolled back"),
    ("ring", NO_PARKING, "a pop that is rolled back"),
    ("fifo", STORE_TWICE, "a push that is rolled back"),
    ("fifo", STORE_TWICE, "a session that is killed"),
    ("fifo", NO_DELETE, "READ COMMITTED"),
    ("fifo", UPDATE_INSTEAD, "READ COMMITTED"),
    ("fifo", "s/BEGIN/BEGIN RAISE 'no'; /", "READ COMMITTED"),
    ("fifo", UPDATE_INSTEAD, "SERIALIZABLE"),
    ("fifo", NO_ARCHIVE, "purge and restore"),
    ("fifo", 'ALTER TABLE public."{q}" DROP CONSTRAINT "{q}_pkey"', "the doctor names"),
    ("fifo", 'GRANT DELETE ON public."{q}_archive" TO PUBLIC', "the server lets"),
]
"""Design, defect of its scratch queue, and the claim that it breaks."""


def plant(on_trial: Trial, defect: str) -> None:
    """Plant a defect: SQL, or s/pattern/replacement/ in the pop functions."""
    queue = on_trial.queue
    with on_trial.database.transaction("plant a defect") as connection:
        if not defect.startswith("s/"):
            connection.execute(text(defect.replace("{q}", queue.name).replace(":", "\\:")))
            return
        _, pattern, replacement, _ = defect.split("/")
        query = "SELECT pg_get_functiondef(oid) FROM pg_proc WHERE proname IN (:one, :many)"
        names = {"one": f"{queue.name}_pop", "many": f"{queue.name}_pop_many"}
        for made in connection.execute(text(query), names).scalars().all():
            assert re.search(pattern, made)
            changed = re.sub(pattern, replacement, made, count=0 if "ORDER" in pattern else 1)
            connection.execute(text(changed.replace(":", "\\:")))


@pytest.mark.parametrize(
    ("design", "defect", "words"),
    [
        pytest.param(*one, id=f"{one[2]}-{one[0]}", marks=[pytest.mark.long] * (NO_DELETE in one))
        for one in DEFECTS
    ],
)
def test_a_defect_disproves_its_claim(
    use_postgresql: Use, design: str, defect: str, words: str
) -> None:
    on_trial = trial_of(use_postgresql, design)
    plant(on_trial, defect)
    line = prove_claim(design, claim_of(on_trial, words), on_trial)
    assert line.outcome is Outcome.FAILED, line.evidence
    assert line.evidence


def test_pops_that_wait_ahead_disprove_no_full_queue(use_postgresql: Use) -> None:
    """Consumers that raced for the last message leave a pop that waits for the next push."""
    client = use_postgresql(Variant(DESIGNS["ring"], {"size": "8"}))
    on_trial = Trial(client.database, client.queue)
    on_trial.require_drained(on_trial.push(3))
    with client.database.transaction("two pops wait") as connection:
        connection.execute(
            text(f"""
            INSERT INTO public."{client.queue.name}_parked" (number, void, parked_at)
            SELECT nextval('public."{client.queue.name}_pop_seq"'), false, now()
            FROM generate_series(1, 2)
        """)
        )
    line = prove_claim("ring", claim_of(on_trial, "a full queue"), on_trial)
    assert line.outcome is Outcome.PROVEN, line
    assert line.evidence == "8 stored, then 0 of 4, 2 numbers consumed; 8 came"


def trial_of(use: Use, design: str) -> Trial:
    options = {"size": "100"} if design == "ring" else {}
    client = use(Variant(DESIGNS[design], options))
    return Trial(client.database, client.queue)


def claim_of(on_trial: Trial, words: str) -> Claim:
    claims = run.claims_of(on_trial.database)
    (found,) = [claim for claim in claims if claim.text.startswith(words)]
    return found


CODES = {
    "code_missing": "fifo",
    "claims_gone": "claim",
    "rows_held": "fifo",
    "payload_missing": "split",
}
"""Code of each planted fault, and a design that can have it."""
FINDS_NOTHING, REPAIRS_NOTHING = "sees nothing", "repairs nothing"
IN_SHORT = dict(zip(CODES, (FINDS_NOTHING, REPAIRS_NOTHING) * 2, strict=True))


@pytest.mark.parametrize(
    ("code", "failing"),
    [
        pytest.param(code, failing, marks=[pytest.mark.long] * (IN_SHORT[code] != failing))
        for code in CODES
        for failing in (FINDS_NOTHING, REPAIRS_NOTHING)
    ],
)
def test_a_failing_doctor_disproves_its_claims(
    use_postgresql: Use, monkeypatch: pytest.MonkeyPatch, code: str, failing: str
) -> None:
    on_trial = trial_of(use_postgresql, CODES[code])
    if failing == FINDS_NOTHING:
        nothing = [Diagnosis(on_trial.queue, ())]
        monkeypatch.setattr(trial, "diagnose", lambda *_, **__: nothing)
    else:
        monkeypatch.setattr(trial, "try_repair", lambda *_: Result(audit.Outcome.DONE, ()))
    line = prove_claim("", claim_of(on_trial, f"the doctor finds {code}"), on_trial)
    assert line.outcome is Outcome.FAILED
    assert code in line.evidence
    if code == "code_missing":
        monkeypatch.undo()
        on_trial.require_repaired(code)  # else it could not be uninstalled


def test_a_queue_that_differs_from_the_printed_sql_or_stays_disproves_a_claim(
    postgresql: Database,
) -> None:
    kept: list[Queue] = []

    @contextmanager
    def careless(database: Database, queue: Queue) -> Iterator[None]:
        install(database, queue)
        kept.append(queue)
        plant(Trial(database, queue), "s/BEGIN/BEGIN NULL;/")
        yield

    first, last = list(Proof(postgresql, "public", print, install_scratch=careless).run("heap"))
    assert [first.claim, last.claim] == [INSTALLS, LEAVES_NOTHING]
    assert (first.outcome, last.outcome) == (Outcome.FAILED, Outcome.FAILED)
    assert "_pop" in first.evidence
    assert kept[0].name in last.evidence
    remove(postgresql, kept[0])


def test_after_a_failure_the_next_claim_has_a_new_queue(postgresql: Database) -> None:
    """Only the first scratch queue is defective."""
    made: list[Queue] = []

    @contextmanager
    def defective(database: Database, queue: Queue) -> Iterator[None]:
        with scratch_queue(database, queue):
            if not made:
                plant(Trial(database, queue), STORE_TWICE)
            made.append(queue)
            yield

    with closing(
        Proof(postgresql, "public", print, install_scratch=defective).run("fifo")
    ) as lines:
        first, failed, after = itertools.islice(lines, 3)
    assert (first.claim, failed.claim) == (INSTALLS, "an empty queue answers with no row")
    assert failed.outcome is Outcome.FAILED
    assert after.outcome is Outcome.PROVEN
    assert len(made) == 2


def test_a_claim_that_hangs_is_not_answered_and_the_next_has_a_new_queue(
    postgresql: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hang(on_trial: Trial) -> str:
        with on_trial.database.transaction("hang") as connection:
            connection.execute(text("SELECT pg_sleep(600)"))
        return "it ended"

    def push(on_trial: Trial) -> str:
        return str(on_trial.push(1))

    claims = [Claim("it hangs", hang), Claim("it pushes", push)]
    monkeypatch.setattr(run, "claims_of", lambda _: claims)
    monkeypatch.setattr(run, "_CLAIM_SECONDS", 2.0)
    lines = {line.claim: line for line in Proof(postgresql, "public", print).run("fifo")}
    assert lines["it hangs"].outcome is Outcome.NOT_ANSWERED
    assert "has not answered within 2 s" in lines["it hangs"].evidence
    assert lines["it pushes"].evidence == "[0]"
    assert lines[LEAVES_NOTHING].outcome is Outcome.PROVEN


def test_a_proof_drops_the_queue_that_a_killed_proof_left(database_url: str) -> None:
    console = Console(database_url)
    listed = f"SELECT string_agg(queue_name, ' ') FROM dbq.queue WHERE queue_name LIKE '{PREFIX}%'"
    sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'dbq-prove %'"
    with console.process("prove", "--designs", "fifo") as process:
        assert process.stderr is not None
        assert b"fifo: installs" in process.stderr.readline()
        process.kill()
    process.wait_for_no_session()
    wait_until(lambda: value(database_url, sessions) == 0, "no session of a proof any more")
    left = value(database_url, listed)
    assert isinstance(left, str)

    reported: list[str] = []
    with (
        closing(open_database(database_url)) as database,
        closing(Proof(database, "public", reported.append).run("heap")) as proof,
    ):
        assert next(proof).claim == INSTALLS
        assert f"An earlier proof left the queue public.{left} behind" in " ".join(reported)
        assert left not in str(value(database_url, listed))


@pytest.mark.long
@pytest.mark.parametrize(
    "sent", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)]
)
def test_an_interrupt_leaves_nothing(database_url: str, sent: signal.Signals) -> None:
    console = Console(database_url)
    with console.process("prove", "--designs", "fifo") as process:
        assert process.stderr is not None
        assert b"fifo: installs" in process.stderr.readline()
        process.send_signal(sent)
        output = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 128 + sent, output
    there = f"SELECT count(*) FROM pg_class WHERE relname LIKE '{PREFIX}%'"
    assert value(database_url, there) == 0


def test_an_error_caused_by_an_interrupt_is_no_outcome(postgresql: Database) -> None:
    """A driver that is interrupted in a call raises its own error."""

    def cut_off(_: object) -> str:
        try:
            raise KeyboardInterrupt  # noqa: TRY301
        except KeyboardInterrupt:
            raise ConsoleError("The query was cancelled.")  # noqa: B904  # as a driver's is

    queue = Variant(DESIGNS["fifo"], {}).queue("public", "never_made", "postgresql")
    with pytest.raises(KeyboardInterrupt):
        prove_claim("fifo", Claim("it is cut off", cut_off), Trial(postgresql, queue))


def test_the_queue_of_a_running_proof_is_not_dropped(postgresql: Database) -> None:
    reported: list[str] = []
    running = Proof(postgresql, "public", print).run("fifo")
    assert next(running).claim == INSTALLS

    with closing(Proof(postgresql, "public", reported.append).run("heap")) as another:
        assert next(another).claim == INSTALLS

    assert "belongs to a proof that may still be running" in " ".join(reported)
    with closing(running):
        assert [line.outcome for line in itertools.islice(running, 2)] == [Outcome.PROVEN] * 2
