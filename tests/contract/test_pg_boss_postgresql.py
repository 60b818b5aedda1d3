"""pg-boss's own jobs: its workers make and end them, and the console shows the same."""

import json

import pytest

from tests.cli.calls import Console
from tests.contract.libraries import adopt, counts, discovered, error_group, figures
from tests.contract.node_libraries import PgBossApp, pg_boss

JOB = '"their_boss".job'
_SETUP = """
await boss.createQueue("report", { retryLimit: 0, partition: true });
for (let n = 0; n < 7; n++) await boss.send("mail", { n });
for (const job of await boss.fetch("mail", { batchSize: 2 })) await boss.fail("mail", job.id,
    new Error("no host " + job.data.n));
for (const job of await boss.fetch("mail", { batchSize: 1 })) await boss.complete("mail", job.id);
await boss.send("mail", { n: 5 }, { startAfter: 3600 });
await boss.cancel("mail", await boss.send("mail", { n: 6 }));
for (let n = 0; n < 2; n++) await boss.send("report", { n });
"""


@pytest.fixture
def boss(console: Console) -> PgBossApp:
    return pg_boss(console.url)


def own_counts(boss: PgBossApp, *queues: str) -> list[dict[str, int]]:
    """Its own counts for each queue."""
    stats = boss.do(
        f"return await Promise.all({json.dumps(queues)}"
        ".map(async (name) => (await boss.getQueueStats(name))[0]))"
    )
    names = {
        "ready": "readyCount",
        "scheduled": "deferredCount",
        "claimed": "activeCount",
        "errors": "failedCount",
    }
    return [{ours: stat[name] for ours, name in names.items()} for stat in stats]


@pytest.mark.long
def test_job_counts_equal_those_of_pg_boss(console: Console, boss: PgBossApp) -> None:
    boss.do(_SETUP)
    left = boss.leave(3)
    found = discovered(console, "pg-boss")
    assert int(found["version"]) >= 30
    assert (found["table"], found["queues"]) == ("job", ["mail", "report"])
    adopt(console, "pg-boss", "mail", "report")
    for name, own in zip(("mail", "report"), own_counts(boss, "mail", "report"), strict=True):
        assert figures(console, name).items() >= own.items()
    assert figures(console, "jobs") == counts(3, 1, 3, 0, 2, 1)
    number, words = error_group(console, "mail")
    assert (number, words.startswith("no host")) == (2, True)
    boss.silence()
    console.done("release", "mail", "--unknown", "--yes")
    assert figures(console, "mail") == counts(4, 1, 0, 0, 2, 1)
    # Without one of its tries.
    tries = boss.rows("SELECT DISTINCT retry_count FROM job WHERE id = ANY(%s::uuid[])", [left])
    assert tries == [(0,)]
    # One of a living worker, too, if forced.
    boss.leave(1)
    console.done("release", "mail", "--force", "--yes")
    assert figures(console, "mail") == counts(4, 1, 0, 0, 2, 1)
