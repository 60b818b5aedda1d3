"""What the console shows of each library's jobs, in each version: as the library counts them. Its
verbs follow the library's rules, or are refused by its name."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import pytest

from console.features.presets.designs import LIBRARIES
from tests.cli.calls import Console
from tests.contract.debian_libraries import DebianApp, LaravelApp, delayed_job, laravel, symfony
from tests.contract.libraries import (
    Tables,
    adopt,
    counts,
    discovered,
    error_group,
    figures,
    findings,
    listed,
)
from tests.contract.library_table import (
    OLD_RIVER,
    PGQUEUER_SQL,
    PROCRASTINATE_SQL,
    graphile_of,
    of_npm,
    of_pip,
    stand_in,
)
from tests.contract.node_libraries import (
    BOSS_9,
    BOSS_10,
    BOSS_10_OPEN,
    GraphileApp,
    PgBossApp,
    graphile_worker,
    pg_boss,
    run_node,
)
from tests.contract.oban_library import ObanApp, oban
from tests.contract.stand_in import RIVER, SOLID_QUEUE

Numbers = tuple[int | None, ...]
"""Jobs in each state, in the order of STATES."""
Do = str | Callable[[Any], object]
"""What a library does: a script in its language, or with its tables."""
Found = Sequence[tuple[str, Mapping[str, object]]]
"""Codes of findings, each with some of its values; of texts, patterns."""


class Then(NamedTuple):
    """What is done then, by the console after a `$`, and what is shown of `jobs` after it."""

    done: Do
    shown: Numbers
    says: str = ""
    finds: Found = ()


@dataclass(frozen=True)
class Case:
    """A library with jobs in known states."""

    design: str
    """The preset of its version, whose name may end with a number."""
    create: Callable[[str], Tables]
    fill: Do
    shown: Mapping[str, Numbers]
    """Of all jobs as the queue `jobs`, and of others."""
    _: KW_ONLY
    version: str = ""
    found: Mapping[str, object] = field(default_factory=dict)
    """By `discover`."""
    least_version: int = 0
    own: Callable[[Any], Mapping[str, Mapping[str, int]]] = lambda _: {}
    """The library's own counts: queue -> state -> jobs."""
    claim: Mapping[str, str] = field(default_factory=dict)
    """Patterns of values of the only claim."""
    error: tuple[str, int, str] | None = None
    """A queue, the size of its only error group, and a pattern of its sample."""
    finds: Found = ()
    refused: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Verb -> words of the refusal."""
    then: Sequence[Then] = ()
    left: Mapping[str, Sequence[tuple[object, ...]]] = field(default_factory=dict)
    """A query of its tables -> its rows in the end."""

    def __str__(self) -> str:
        return f"{self.design} {self.version}".strip()


def fill_oban(theirs: ObanApp) -> None:
    theirs.insert("mail", 7)
    theirs.insert("mail", 2, later=True)
    theirs.insert("report", 3)
    producer = theirs.begin("mail")
    first, second, third = producer.fetch(3)
    producer.end(first, "completed")
    producer.end(second, "discarded", "no host 8")
    theirs.execute("cancel_many_jobs", ids=[producer.fetch(1)[0][0]])
    theirs.execute("cancel_many_jobs", ids=theirs.insert("mail", 1))
    assert third[1] == "executing"


def counts_of_oban(theirs: ObanApp) -> Mapping[str, Mapping[str, int]]:
    names = {
        "available": "ready",
        "scheduled": "scheduled",
        "retryable": "scheduled",
        "executing": "claimed",
        "discarded": "errors",
        "completed": "done",
    }
    own: dict[str, Counter[str]] = defaultdict(Counter)
    for state, queue, number in theirs.execute("count_jobs", states=[*names]):
        own[queue][names[state]] += number
        own["jobs"][names[state]] += number
    return own


def fill_graphile(theirs: GraphileApp) -> None:
    theirs.add_job("send")
    theirs.add_job("send", '{"fails": true, "n": 8}', max_attempts="1")
    theirs.add_job("send", '{"fails": true, "n": 9}')
    theirs.run(
        """
        ALTER TABLE _private_jobs DISABLE TRIGGER USER;
        UPDATE _private_jobs
        SET created_at = now() - interval '3 h', updated_at = now() - interval '3 h';
        """
    )
    theirs.work()
    # Its retry is due after a few seconds, which the next steps may take on a busy machine.
    theirs.run(
        """
        ALTER TABLE _private_jobs ENABLE TRIGGER USER;
        UPDATE _private_jobs SET run_at = now() + interval '1 h' WHERE attempts < max_attempts
        """
    )
    for task in ("send", "send", "report"):
        theirs.add_job(task)
    theirs.add_job("send", run_at="now() + interval '1 h'")


def fill_old_graphile(theirs: GraphileApp, queue: str, locks: str) -> None:
    theirs.add_job("send")
    theirs.add_job("send", run_at="now() + interval '1 h'")
    theirs.add_job("report", queue_name=queue)
    theirs.run("UPDATE jobs SET attempts = max_attempts, last_error = 'no host 7' WHERE id = 1")
    theirs.run(f"UPDATE {locks}")


def fill_boss(theirs: PgBossApp) -> None:
    theirs.do(
        """
        await boss.createQueue("report", { retryLimit: 0, partition: true });
        for (let n = 0; n < 7; n++) await boss.send("mail", { n });
        for (const job of await boss.fetch("mail", { batchSize: 2 }))
            await boss.fail("mail", job.id, new Error("no host " + job.data.n));
        for (const job of await boss.fetch("mail")) await boss.complete("mail", job.id);
        await boss.send("mail", { n: 5 }, { startAfter: 3600 });
        await boss.cancel("mail", await boss.send("mail", { n: 6 }));
        for (let n = 0; n < 2; n++) await boss.send("report", { n });
        """
    )
    theirs.leave(3)


def counts_of_boss(theirs: PgBossApp) -> Mapping[str, Mapping[str, int]]:
    names = {"ready": "readyCount", "scheduled": "deferredCount"}
    names |= {"claimed": "activeCount", "errors": "failedCount"}
    own = {}
    for queue in ("mail", "report"):
        (stats,) = theirs.do(f'return await boss.getQueueStats("{queue}")')
        own[queue] = {ours: stats[name] for ours, name in names.items()}
    return own


BOSS_ENDS = f"""
{BOSS_10_OPEN}
for (const job of await boss.fetch("mail", {{ batchSize: 9 }})) await boss.complete("mail", job.id);
process.exit(0);
"""
PGQUEUER_0_26_SQL = """
import sys, types
# It does not import what Python 3.11 has itself.
sys.modules["async_timeout"] = types.ModuleType("async_timeout")
sys.modules["async_timeout"].timeout = None
from pgqueuer.qb import *
print(QueryBuilderEnvironment().build_install_query())
"""


def counts_of_laravel(theirs: DebianApp) -> Mapping[str, Mapping[str, int]]:
    own = theirs.do(
        """
        $of = fn () => $capsule->getConnection()->table("jobs")->where("queue", "mail");
        tell(["ready" => $queue->size("mail") - 3,
            "scheduled" => $of()->where("available_at", ">", time())->count(),
            "claimed" => $of()->whereNotNull("reserved_at")->count()]);
        """
    )
    return {"mail": own}


def counts_of_symfony(theirs: DebianApp) -> Mapping[str, Mapping[str, int]]:
    return {"mail": {"ready": theirs.do('tell(transport("mail")->getMessageCount());')}}


def take_back_in_symfony(theirs: DebianApp) -> None:
    theirs.recover()
    assert counts_of_symfony(theirs) == {"mail": {"ready": 4}}


HEARTBEAT = "heartbeat = now() - interval '1 h',"
TWO = ["mail", "report"]
RELEASED = "$ release jobs --unknown --yes"
CASES = [
    Case(
        "river",
        stand_in(RIVER),
        """
        INSERT INTO river_queue (name) VALUES ('mail'), ('report');
        INSERT INTO river_job (queue) SELECT 'mail' FROM generate_series(1, 4);
        INSERT INTO river_job (queue, state, scheduled_at)
        VALUES ('mail', 'scheduled', now() + interval '1 h');
        INSERT INTO river_job (queue, state, attempt, errors, finalized_at, unique_key,
            unique_states)
        SELECT 'report', 'discarded', 1, ARRAY['{"error": "no host 7"}'::jsonb], now(), 'one',
            B'11110101' FROM generate_series(1, 2);
        INSERT INTO river_job (queue, state, attempted_at, attempted_by)
        VALUES ('report', 'running', now() - interval '1 h', '{old,new}');
        INSERT INTO river_job (queue, state, finalized_at)
        VALUES ('mail', 'completed', now()), ('mail', 'cancelled', now());
        """,
        {"jobs": (4, 1, 1, 1, 2, 1), "mail": (4, 1, 0, 0, 0, 1)},
        found={"version": "7", "queues": TWO},
        claim={"claimed_by": "new"},
        error=("jobs", 2, "no host 7"),
        # Of the library's title, its name only.
        finds=[("claims_unknown", {"cause": "*only River knows whether*"})],
        refused={"release": ["JobRescuer"]},
        then=[Then("$ requeue jobs --yes", (5, 1, 1, 1, 1, 1), "unique_key")],
    ),
    Case(
        "river-0",
        stand_in(OLD_RIVER),
        """
        INSERT INTO river_job (queue, state, attempted_at, attempted_by) VALUES
            ('mail', 'available', NULL, NULL), ('report', 'running', now(), '{one}')
        """,
        {"jobs": (1, 0, 1, 0, 0, 0), "mail": (1, 0, 0, 0, 0, 0)},
        found={"library": "River before 0.12", "queues": TWO},
        refused={
            "requeue": ["River before 0.12", "River 0.12 and later only"],
            **dict.fromkeys(("pause", "release"), ("River",)),
        },
    ),
    Case(
        "solid-queue",
        stand_in(SOLID_QUEUE),
        """
        INSERT INTO solid_queue_jobs (arguments)
        SELECT '{"executions": 3, "arguments": [7]}' FROM generate_series(1, 10);
        UPDATE solid_queue_jobs SET queue_name = 'report' WHERE id > 8;
        UPDATE solid_queue_jobs SET concurrency_key = 'one' WHERE id IN (5, 8);
        INSERT INTO solid_queue_ready_executions (job_id, queue_name, created_at)
        SELECT id, queue_name, created_at FROM solid_queue_jobs WHERE id IN (1, 2, 9);
        INSERT INTO solid_queue_scheduled_executions (job_id, queue_name, created_at)
        VALUES (3, 'mail', now());
        INSERT INTO solid_queue_blocked_executions (job_id, queue_name, created_at)
        VALUES (8, 'mail', now());
        INSERT INTO solid_queue_failed_executions (job_id, error, created_at)
        SELECT id, '{"exception_class": "IOError", "message": "no host 7"}', now()
        FROM solid_queue_jobs WHERE id IN (4, 5);
        INSERT INTO solid_queue_processes (last_heartbeat_at)
        VALUES (timezone('UTC', now())), (timezone('UTC', now()) - interval '1 h');
        INSERT INTO solid_queue_claimed_executions (job_id, process_id, created_at)
        VALUES (6, 1, timezone('UTC', now() - interval '1 h')),
            (7, 2, timezone('UTC', now() - interval '1 h'));
        UPDATE solid_queue_jobs SET finished_at = timezone('UTC', now()) WHERE id = 10;
        """,
        {"jobs": (3, 2, 2, 1, 2, 1), "mail": (2, 2, 2, 1, 2, 0)},
        found={"queues": TWO},
        error=("jobs", 2, "IOError: no host 7"),
        then=[
            Then("$ requeue jobs --dry-run", (3, 2, 2, 1, 2, 1), "1 they have a concurrency_key"),
            Then("$ requeue jobs --yes", (4, 2, 2, 1, 1, 1)),
            Then("$ release jobs --dry-run", (4, 2, 2, 1, 1, 1), "skipped: 1 their owner is alive"),
            Then("$ release jobs --yes", (5, 2, 1, 0, 1, 1)),
        ],
        left={
            "SELECT arguments::jsonb FROM solid_queue_jobs WHERE id = 4": [
                ({"executions": 0, "arguments": [7]},)
            ],
            "SELECT array_agg(job_id ORDER BY job_id) FROM solid_queue_ready_executions": [
                ([1, 2, 4, 7, 9],)
            ],
        },
    ),
    Case(
        "oban",
        oban,
        fill_oban,
        {"jobs": (6, 2, 2, 0, 1, 1), "mail": (3, 2, 2, 0, 1, 1), "report": (3, 0, 0, 0, 0, 0)},
        found={"queues": TWO},
        own=counts_of_oban,
        error=("mail", 1, "no host 8"),
    ),
    Case(
        "graphile-worker",
        graphile_worker,
        fill_graphile,
        {"jobs": (3, 2, 0, 0, 1, None), "send": (2, 2, 0, 0, 1, None)},
        found={"queues": ["hang", "report", "send"]},
        least_version=18,
        error=("send", 1, "no host 8"),
        then=[Then("$ requeue send --yes", (4, 2, 0, 0, 0, None))],
        left={"SELECT count(*) FROM _private_jobs WHERE is_available": [(6,)]},
    ),
    Case(
        "graphile-worker-15",
        graphile_of("0.15.1"),
        lambda theirs: fill_old_graphile(
            theirs, "'one'", "job_queues SET locked_at = now() - interval '1 h', locked_by = 'w'"
        ),
        {"jobs": (1, 1, 0, 0, 1, None), "send": (0, 1, 0, 0, 1, None)},
        found={"library": "graphile-worker 0.14 and 0.15"},
        error=("send", 1, "no host 7"),
        finds=[("queue_locked", {"waiting": 1})],
        refused={"requeue": ["graphile-worker 0.14 and 0.15"]},
    ),
    Case(
        "graphile-worker-0",
        graphile_of("0.13.0"),
        lambda theirs: fill_old_graphile(
            theirs,
            "NULL",
            "jobs SET locked_at = now() - interval '1 h', locked_by = 'w' WHERE id = 3",
        ),
        {"jobs": (0, 1, 1, 1, 1, None), "send": (0, 1, 0, 0, 1, None)},
        found={"library": "graphile-worker before 0.14", "queues": ["report", "send"]},
        error=("send", 1, "no host 7"),
        refused={"requeue": ["this version"]},
    ),
    Case(
        "pg-boss",
        pg_boss,
        fill_boss,
        {"jobs": (3, 1, 3, 0, 2, 1), "mail": (1, 1, 3, 0, 2, 1), "report": (2, 0, 0, 0, 0, 0)},
        found={"table": "job", "queues": TWO},
        least_version=30,
        own=counts_of_boss,
        error=("mail", 2, "no host*"),
        then=[
            Then(PgBossApp.silence, (3, 1, 3, 3, 2, 1)),
            Then("$ release mail --unknown --yes", (6, 1, 0, 0, 2, 1)),
            # One of a living worker, too, if forced.
            Then(lambda theirs: theirs.leave(1), (5, 1, 1, 0, 2, 1)),
            Then("$ release mail --force --yes", (6, 1, 0, 0, 2, 1)),
        ],
        # Without one of its tries.
        left={"SELECT DISTINCT retry_count FROM job WHERE state = 'created'": [(0,)]},
    ),
    *(
        Case(
            "pg-boss-11",
            of_npm(version, BOSS_10),
            "",
            dict.fromkeys(("jobs", "mail"), (1, 1, 1, 0, 1, 1)),
            version=version,
            found={"library": "pg-boss 10 to 12.18", "queues": ["mail"], **tables},
            refused={"release": ["pg-boss 10 to 12.18"]},
            then=[
                Then("$ requeue jobs --yes", (2, 1, 1, 0, 0, 1)),
                Then(lambda theirs: run_node(theirs, BOSS_ENDS), (0, 1, 1, 0, 0, 3)),
            ],
        )
        for version, tables in (
            ("10.4.2", {"version": "24"}),
            ("11.1.2", {"version": "26"}),
            ("12.18.3", {}),
        )
    ),
    Case(
        "pg-boss-9",
        of_npm("9.0.3", BOSS_9),
        "",
        {"jobs": (1, 1, 1, 0, 1, 1)},
        found={"library": "pg-boss 9 and earlier", "version": "20", "queues": ["mail"]},
        error=("jobs", 1, "no host*"),
        refused=dict.fromkeys(("requeue", "release"), ("pg-boss 9 and earlier", "12.19")),
        then=[
            Then(
                "UPDATE job SET createdon = now() - interval '1 d',"
                " startafter = now() - interval '1 h', startedon = now() - interval '1 h'",
                (2, 0, 1, 1, 1, 1),
                finds=[("messages_overdue", {"messages": 2})],
            )
        ],
    ),
    *(
        Case(
            "procrastinate-2",
            of_pip(f"procrastinate=={version}", PROCRASTINATE_SQL),
            """
            INSERT INTO procrastinate_jobs (queue_name, task_name, scheduled_at)
            VALUES ('mail', 'send', NULL), ('mail', 'send', NULL), ('mail', 'send', NULL),
                ('mail', 'send', now() + interval '1 h'), ('report', 'send', NULL);
            UPDATE procrastinate_jobs SET status = 'doing' WHERE id < 4;
            UPDATE procrastinate_jobs SET status = 'failed' WHERE id = 1;
            UPDATE procrastinate_jobs SET status = 'succeeded' WHERE id = 2
            """,
            {"jobs": (1, 1, 1, 0, 1, 1), "mail": (0, 1, 1, 0, 1, 1)},
            version=version,
            found={"library": "procrastinate 1, 2 and 3.0", "queues": TWO},
            refused={"pause": ["procrastinate has no pause"], **refused},
            then=[
                Then(
                    "UPDATE procrastinate_events SET at = at - interval '1 h'",
                    (1, 1, 1, 1, 1, 1),
                    finds=[("claims_unknown", {})],
                ),
                *then,
            ],
            left={"SELECT attempts FROM procrastinate_jobs WHERE id = 3": [(attempts,)]},
        )
        for version, refused, then, attempts in (
            *(
                (old, {"requeue": ["procrastinate 2"]}, [Then(RELEASED, (2, 1, 0, 0, 1, 1))], 1)
                for old in ("1.1.2", "2.15.1")
            ),
            ("3.0.0", {"release": ["no function", "procrastinate_retry_job"]}, [], 0),
        )
    ),
    *(
        Case(
            "pgqueuer-0",
            of_pip(f"pgqueuer=={version}", PGQUEUER_SQL),
            f"""
            INSERT INTO pgqueuer (priority, status, entrypoint)
            VALUES (0, 'queued', 'mail'), (0, 'queued', 'report'), (0, 'picked', 'mail');
            UPDATE pgqueuer SET {seen} updated = now() - interval '1 h' WHERE status = 'picked'
            """,
            {"jobs": (2, 0, 1, 1, None, None), "mail": (1, 0, 1, 1, None, None)},
            version=version,
            found={"library": "pgqueuer before 0.20", "queues": TWO},
            finds=[("claims_unknown", {})],
            refused=dict.fromkeys(("requeue", "release", "pause"), ("pgqueuer",)),
        )
        for version, seen in (("0.8.10", ""), ("0.12.0", HEARTBEAT), ("0.15.0", HEARTBEAT))
    ),
    Case(
        "pgqueuer",
        of_pip("pgqueuer==0.26.3", PGQUEUER_0_26_SQL),
        "INSERT INTO pgqueuer (priority, status, entrypoint) VALUES (0, 'queued', 'mail')",
        {"jobs": (1, 0, 0, 0, 0, None)},
        version="0.26.3",
        found={"library": "pgqueuer 0.20 and later"},
    ),
    Case(
        "delayed-job",
        delayed_job,
        """
        2.times { |n| Delayed::Job.enqueue Send.new(n, true), queue: "mail" }
        Delayed::Worker.new(quiet: true).work_off
        4.times { |n| Delayed::Job.enqueue Send.new(n, false), queue: "mail" }
        Delayed::Job.enqueue Send.new(9, false), queue: "report", run_at: Time.now + 3600
        Delayed::Job.reserve(Delayed::Worker.new)
        """,
        {"jobs": (3, 1, 1, 0, 2, None), "mail": (3, 0, 1, 0, 2, None)},
        found={"queues": TWO},
        own=lambda theirs: {
            "jobs": {
                "ready": theirs.do(
                    'tell Delayed::Job.ready_to_run("nobody", Delayed::Worker.max_run_time).count'
                )
            }
        },
        claim={"claimed_by": "host:*"},
        error=("jobs", 2, "no host*"),
        refused={"requeue": ["failed_at"]},
        then=[
            Then("$ release jobs --force --yes", (4, 1, 0, 0, 2, None)),
            Then("Delayed::Worker.new(quiet: true).work_off", (0, 1, 0, 0, 2, None)),
        ],
        left={"SELECT string_agg(job, ' ' ORDER BY job) FROM ran": [("0 1 2 3",)]},
    ),
    Case(
        "laravel",
        laravel,
        """
        for ($n = 0; $n < 5; $n++) $queue->push("Send", ["n" => $n], "mail");
        $queue->later(3600, "Send", ["n" => 7], "mail"); $queue->push("Report", [], "report");
        for ($n = 0; $n < 2; $n++) $queue->pop("mail");
        """,
        {"jobs": (4, 1, 2, 0, None, None), "mail": (3, 1, 2, 0, None, None)},
        found={"queues": TWO},
        own=counts_of_laravel,
        refused={"requeue": ["queue:retry"]},
        then=[
            Then(LaravelApp.silence, (4, 1, 2, 2, None, None)),
            Then("$ release mail --unknown --yes", (6, 1, 0, 0, None, None)),
            Then(
                """
                while ($job = $queue->pop("mail")) $capsule->getConnection()->insert(
                    "INSERT INTO public.ran VALUES (?)",
                    [$job->payload()["data"]["n"] . " " . $job->attempts()]);
                """,
                (1, 1, 5, 0, None, None),
            ),
        ],
        # Of each job its number, and how often it was taken.
        left={"SELECT string_agg(job, ', ' ORDER BY job) FROM ran": [("0 2, 1 2, 2 1, 3 1, 4 1",)]},
    ),
    Case(
        "symfony",
        symfony,
        r"""
        $mail = transport("mail");
        for ($n = 0; $n < 5; $n++) $mail->send("{\"n\": $n}", ["type" => "App\Send"]);
        $mail->send("{}", ["type" => "App\Send"], 3600000);
        transport("failed")->send("{}", ["type" => "App\Send"]);
        $mail->get(); $mail->ack($mail->get()["id"]);
        """,
        {"jobs": (4, 1, 1, 0, None, None), "mail": (3, 1, 1, 0, None, None)},
        found={"queues": ["failed", "mail"]},
        own=counts_of_symfony,
        claim={"title": "App\\Send"},
        refused={"release": ["redeliver_timeout"], "requeue": ["messenger:failed:retry"]},
        # With that of the queue `failed`.
        then=[Then(take_back_in_symfony, (5, 1, 0, 0, None, None))],
    ),
]


SHORT = {
    *("river", "river-0", "solid-queue", "procrastinate-2 2.15.1", "procrastinate-2 3.0.0"),
    *("pgqueuer-0 0.8.10", "pgqueuer-0 0.15.0", "pgqueuer 0.26.3"),
}
LONG = [pytest.mark.long]
ROUNDED = timedelta(seconds=5)
"""What libraries leave of a time, or compute it from."""


def _like(value: object, expected: object) -> bool:
    return fnmatchcase(value, str(expected)) if isinstance(value, str) else value == expected


def _do(theirs: Tables, what: Do) -> None:
    theirs.do(what) if isinstance(what, str) else what(theirs)


def _find(console: Console, expected: Found) -> None:
    found = findings(console, "jobs") if expected else {}
    for code, values in expected:
        assert code in found, [*found]
        shown = {**found[code], **found[code]["evidence"]}
        assert all(_like(shown[name], value) for name, value in values.items()), shown


@pytest.mark.parametrize(
    "case", [pytest.param(of, id=str(of), marks=[] if str(of) in SHORT else LONG) for of in CASES]
)
def test_jobs_are_shown_as_their_library_counts_them_and_changed_by_its_rules(
    console: Console, case: Case
) -> None:
    theirs = case.create(console.url)
    before = datetime.now(UTC)
    _do(theirs, case.fill)
    filled = datetime.now(UTC)
    found = discovered(console, case.design)
    assert found.items() >= case.found.items()
    assert case.least_version <= int(found["version"] or 0)
    # Whoever names the library gets the version that is there.
    adopt(console, case.design.rstrip("-0123456789"), *(one for one in case.shown if one != "jobs"))
    assert console.status("jobs")["design"] == case.design
    for name, numbers in case.shown.items():
        assert figures(console, name) == counts(*numbers)
    for name, own in case.own(theirs).items():
        assert figures(console, name).items() >= own.items()
    if case.error is not None:
        name, size, sample = case.error
        number, words = error_group(console, name)
        assert (number, _like(words, sample)) == (size, True), words
    jobs = listed(console, "jobs")
    ready, scheduled, claimed, _, errors, done = case.shown["jobs"]
    assert len(jobs) == sum(number or 0 for number in (ready, scheduled, claimed, errors, done))
    for one in jobs:
        assert one["state"] != "claimed" or all(_like(one[k], v) for k, v in case.claim.items())
        if one["state"] == "error" and "done_at" in LIBRARIES[case.design].roles:
            failed = datetime.fromisoformat(one["done_at"])
            assert before - ROUNDED <= failed <= filled + ROUNDED
    _find(console, case.finds)
    for verb, refusal in case.refused.items():
        console(verb, "jobs", "--yes", "jobs").failed(4, *refusal)
    for change in case.then:
        if isinstance(change.done, str) and change.done.startswith("$"):
            assert change.says in console.done(*change.done.split()[1:]).text
        else:
            _do(theirs, change.done)
        assert figures(console, "jobs") == counts(*change.shown)
        _find(console, change.finds)
    for query, rows in case.left.items():
        assert theirs.rows(query) == rows
