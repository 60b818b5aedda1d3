"""Jobs on a standalone cluster, whose processes are killed during a job; all rows are counted."""

import json
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from sqlalchemy import make_url

from console.features.history.segments import SAMPLES
from console.features.lake.lake import Lake
from tests.contract.client import Client
from tests.pipeline.archive_tools import all_payloads, execute_sql, payloads
from tests.pipeline.conftest import NewQueue
from tests.pipeline.recorded import sample, write
from tests.servers import Server, wait_until
from tests.servers.cluster import BUCKET, SECRET, Cluster, object_store, s3_environment
from tests.servers.proxy import Fate, Proxy

pytestmark = pytest.mark.long
"""Three JVMs, and one or two more per job."""

ROWS, CONNECTIONS, CORES = 4_000, 4, 2
_PATIENCE_SECONDS = 600.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, java_folder: Path) -> Iterator[Cluster]:
    pytest.importorskip("pyspark", reason="needs Spark: pip install 'dbq-console[pipeline]'")
    pytest.importorskip("moto")
    with object_store() as endpoint:
        folder = tmp_path_factory.mktemp("cluster")
        with Cluster(folder, s3_environment(endpoint)) as started:
            yield started


@pytest.fixture(params=["folder", "objects"])
def lake(request: pytest.FixtureRequest, cluster: Cluster, tmp_path: Path) -> Lake:
    """An empty lake that all workers can reach."""
    objects = request.param == "objects"
    return Lake(f"s3://{BUCKET}/{tmp_path.name}" if objects else tmp_path / "lake")


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy(server.url) as started:
        yield started


@pytest.fixture
def client(new_queue: NewQueue) -> Client:
    """A queue with messages in its archive."""
    made = new_queue("fifo", archive_at_pop="on")
    made.push_many([f"{made.queue.name} {number}" for number in range(ROWS)])
    assert len(made.drain(1_000)) == ROWS
    return made


def url_through(proxy: Proxy, client: Client) -> str:
    """The client's database through the proxy; connecting may take as long as it is frozen."""
    url = make_url(client.url).set(host="127.0.0.1", port=proxy.port)
    url = url.update_query_dict({"connect_timeout": "600"})
    return url.render_as_string(hide_password=False)


def result_of(job: "subprocess.Popen[str]") -> tuple[int, dict[str, Any], str]:
    """Its exit status, its result, its stderr."""
    out, err = job.communicate(timeout=_PATIENCE_SECONDS)
    lines = [line for line in out.splitlines() if line.startswith("{")]
    return job.returncode, json.loads(lines[-1]) if lines else {}, err


class Freezing:
    """Freezes everything between driver, executors and database at the n-th such statement."""

    def __init__(self, proxy: Proxy, statement: bytes, number: int) -> None:
        self._proxy, self._statement, self._left = proxy, statement, number
        self._reached = False
        self.most = 0
        proxy.fate = self

    def __call__(self, data: bytes) -> Fate:
        self.most = max(self.most, connections_to(self._proxy.port))
        self._left -= self._statement in data
        if self._left or self._reached:
            return Fate.PASSES
        self._reached = True
        return Fate.FROZEN

    def wait(self, job: "subprocess.Popen[str]") -> None:
        """Until that statement was sent."""
        finished = lambda: self._reached or job.poll() is not None  # noqa: E731
        wait_until(finished, "the statement", _PATIENCE_SECONDS)
        assert self._reached, job.communicate()


def connections_to(port: int) -> int:
    """As seen by those who opened them: what they have closed does not count."""
    return sum(
        net_connection.status == psutil.CONN_ESTABLISHED
        and tuple(net_connection.raddr)[1:] == (port,)
        for net_connection in psutil.net_connections("tcp")
    )


def archive(cluster: Cluster, url: str, client: Client, lake: Lake, **how: bool) -> Any:
    words = ("archive", client.queue.name, "--lake", lake.location, "--yes", client.queue.name)
    return cluster.job(url, *words, "--connections", str(CONNECTIONS), **how)


def counted(client: Client, lake: Lake) -> tuple[int, int, int]:
    """Rows of queue, archive and lake; how many of those sent are lost, and how many doubled."""
    found = all_payloads(client, payloads(lake))  # of all files, also those that no manifest names
    sent = Counter(f"{client.queue.name} {number}" for number in range(ROWS))
    return found.total(), (sent - found).total(), (found - sent).total()


def leaks(secret: str, folder: Path) -> list[str]:
    """Files and command lines that contain a secret: also event logs, and what Spark spills."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    lines = (
        " ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])
    )
    return [
        *(str(path) for path in files if secret.encode() in path.read_bytes()),
        *(line for line in lines if secret in line),
    ]


@pytest.mark.parametrize("submitted", [False, True], ids=["--master", "spark-submit"])
def test_archive_uses_all_executors_within_its_connections_and_leaks_no_secret(
    cluster: Cluster, client: Client, lake: Lake, proxy: Proxy, submitted: bool
) -> None:
    before = set(cluster.executors_used())
    secrets = (make_url(client.url).password or "", SECRET)
    assert all(secrets), "the server wants one too"
    frozen = Freezing(proxy, b"pipeline.rows", 3)
    job = archive(cluster, url_through(proxy, client), client, lake, submitted=submitted)
    frozen.wait(job)
    assert [leaks(secret, cluster.folder) for secret in secrets] == [[], []]
    proxy.thaw()
    status, answer, err = result_of(job)
    assert status == 0, err
    assert answer["result"]["exported"] == answer["result"]["deleted"] == ROWS
    assert answer["plan"]["rows"] == ROWS
    assert frozen.most <= CONNECTIONS
    assert counted(client, lake) == (ROWS, 0, 0)
    assert [leaks(secret, cluster.folder) for secret in secrets] == [[], []]
    (mine,) = set(cluster.executors_used()) - before
    assert len(cluster.executors_used()[mine]) == len(cluster.workers)


def kill_worker(cluster: Cluster, _: Any) -> None:
    cluster.kill(cluster.workers.pop(0))
    cluster.workers.append(cluster.start_worker())


def kill_executor(cluster: Cluster, _: Any) -> None:
    # On a busy machine one worker may have both tasks before the other has an executor.
    processes = next(filter(None, map(cluster.executors, cluster.workers)), [])
    assert processes, "it works"
    for process in processes:
        process.kill()


def idle(cluster: Cluster) -> bool:
    return not any(map(cluster.executors, cluster.workers))


def kill_master(cluster: Cluster, _: Any) -> None:
    cluster.kill(cluster.master)
    cluster.start_master()


def kill_driver(_: Cluster, job: "subprocess.Popen[str]") -> None:
    job.kill()
    job.communicate()


@pytest.mark.parametrize(
    ("statement", "kill"),
    [
        ("pipeline.rows", kill_worker),
        ("pipeline.rows", kill_executor),
        ("pipeline.rows", kill_master),
        ("pipeline.rows", kill_driver),
        ("pipeline.delete_rows", kill_driver),
        ("pipeline.delete_rows", kill_worker),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_killing_a_process_of_the_cluster_loses_or_doubles_no_row(
    cluster: Cluster,
    client: Client,
    lake: Lake,
    proxy: Proxy,
    statement: str,
    kill: Callable[[Cluster, Any], None],
) -> None:
    frozen = Freezing(proxy, statement.encode(), 2 if statement == "pipeline.rows" else 1)
    job = archive(cluster, url_through(proxy, client), client, lake)
    frozen.wait(job)
    kill(cluster, job)
    proxy.thaw()
    runs = 1
    if kill is kill_driver:
        found = counted(client, lake)
        assert found[1] == 0, "also before anybody has finished it"
        job, runs = archive(cluster, url_through(proxy, client), client, lake), 2
    status, _, err = result_of(job)
    assert status == 0, err
    total, lost, doubled = counted(client, lake)
    print(
        f"{kill.__name__} at {statement}: 1 kill, {runs} runs, {total} rows, "
        f"{lost} lost, {doubled} doubled"
    )
    assert (total, lost, doubled) == (ROWS, 0, 0)
    assert len(payloads(lake)) == ROWS
    assert not execute_sql(client, "SELECT 1 FROM <archive>")


def test_a_master_without_recovery_ends_the_run_and_the_next_run_finishes(
    cluster: Cluster, client: Client, proxy: Proxy, tmp_path: Path
) -> None:
    """Without recoveryMode, which is Spark's default."""
    lake = Lake(tmp_path / "lake")
    frozen = Freezing(proxy, b"pipeline.rows", 2)
    job = archive(cluster, url_through(proxy, client), client, lake)
    frozen.wait(job)
    cluster.kill(cluster.master)
    cluster.start_master(recovers=False)
    wait_until(lambda: idle(cluster), "no executor is left", _PATIENCE_SECONDS)
    proxy.thaw()
    status, _, err = result_of(job)
    assert (status, "No executor of the cluster works for this job." in err) == (3, True), err
    assert counted(client, lake)[1] == 0, "also before anybody has finished it"
    status, _, err = result_of(archive(cluster, client.url, client, lake))
    assert status == 0, err
    total, lost, doubled = counted(client, lake)
    print(f"forgotten: 1 kill, 2 runs, {total} rows, {lost} lost, {doubled} doubled")
    assert (total, lost, doubled) == (ROWS, 0, 0)


def test_rollup_verify_and_replay_on_a_cluster(
    cluster: Cluster, client: Client, lake: Lake, tmp_path: Path
) -> None:
    status, _, err = result_of(archive(cluster, client.url, client, lake))
    assert status == 0, err
    lake_option, name = ("--lake", lake.location), client.queue.name
    status, answer, err = result_of(cluster.job(client.url, "verify", name, *lake_option))
    assert (status, answer.get("pops"), answer.get("ok")) == (0, ROWS, True), err
    words = ("replay", name, *lake_option, "--filter", "reason=pop", "--yes", name)
    for again in (False, True):
        status, answer, err = result_of(cluster.job(client.url, *words, submitted=again))
        result = answer.get("result", {})
        assert (status, result.get("pushed"), result.get("before")) == (
            0,
            0 if again else ROWS,
            ROWS if again else 0,
        ), err
    recordings = tmp_path / "recordings"
    write(recordings, SAMPLES, *[sample(seconds, ready=seconds) for seconds in range(0, 300, 10)])
    job = cluster.job(client.url, "rollup", "--recordings", str(recordings), *lake_option)
    status, answer, err = result_of(job)
    assert (status, answer.get("rows")) == (0, {"samples": 30}), err


_ALONE = """
import sys
from console.features.lake import spark
spark._NO_EXECUTOR_SECONDS = 5.0
from console.errors import ConsoleError
try:
    with spark.tasks("alone", sys.argv[1]) as tasks:
        tasks.run(dict, [{"rows": 1}])
except ConsoleError as error:
    print(error.what)
"""


def test_a_cluster_without_a_worker_is_reported(cluster: Cluster, tmp_path: Path) -> None:
    """Spark itself would wait forever without a message."""
    script = tmp_path / "alone.py"
    script.write_text(_ALONE)
    while cluster.workers:
        cluster.kill(cluster.workers.pop())
    done = subprocess.run(
        [str(cluster.environment["PYSPARK_PYTHON"]), str(script), cluster.url],
        env=cluster.environment,
        capture_output=True,
        text=True,
        timeout=_PATIENCE_SECONDS,
        check=False,
    )
    assert "No executor of the cluster works for this job." in done.stdout, done.stderr
