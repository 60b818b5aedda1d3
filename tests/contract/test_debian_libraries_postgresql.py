"""Queues of libraries that Debian has: their own code makes and ends jobs,
the console shows the same."""

import json
import shutil
import signal
import subprocess
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import make_url

from tests.cli.calls import Console
from tests.contract.child_processes import foreign_process
from tests.contract.libraries import counts, error_group, figures
from tests.servers import connect, run_in, value, wait_until

RUBY = """
require "json"; require "erb"; require "active_record"; require "delayed_job_active_record"
ActiveRecord::Base.establish_connection(ENV["URL"])
ActiveRecord::Base.connection.schema_search_path = %("their_ruby",public)
Delayed::Worker.logger = nil; Delayed::Worker.destroy_failed_jobs = false;
    Delayed::Worker.max_attempts = 1
Send = Struct.new(:n, :fails) do
  def perform
    raise "no host #{n}" if fails
    if ENV["HANGS"] then tell n; sleep end
    ActiveRecord::Base.connection.execute("INSERT INTO public.ran VALUES (#{n})")
  end
end
def tell(what) puts "TOLD " + JSON.generate(what); STDOUT.flush end
def migrate
  template = File.join(Gem.loaded_specs["delayed_job_active_record"].full_gem_path,
      "lib/generators/delayed_job/templates/migration.rb")
  migration_version = "[6.1]"
  eval ERB.new(File.read(template)).result(binding)
  ActiveRecord::Migration.suppress_messages { CreateDelayedJobs.up }
end
"""
LARAVEL = r"""
require "/usr/share/php/Illuminate/Queue/autoload.php";
    require "/usr/share/php/Illuminate/Database/autoload.php";
use Illuminate\Database\Capsule\Manager as Capsule; use Illuminate\Queue\DatabaseQueue;
$url = parse_url(getenv("URL")); $capsule = new Capsule;
$capsule->addConnection(["driver" => "pgsql", "host" => $url["host"], "port" => $url["port"],
    "database" => ltrim($url["path"], "/"),
    "username" => $url["user"], "password" => $url["pass"], "schema" => "their_php",
        "search_path" => "their_php", "charset" => "utf8"]);
$container = $capsule->getContainer(); $container->instance("db", $capsule->getDatabaseManager());
Illuminate\Support\Facades\Facade::setFacadeApplication($container);
$queue = new DatabaseQueue($capsule->getConnection(), "jobs", "default", 7200);
    $queue->setContainer($container); $queue->setConnectionName("database");
function tell($what) { echo "TOLD ", json_encode($what), "\n"; }
class Send { function fire($job, $data) { global $capsule;
    if (getenv("HANGS")) { tell($data["n"]); sleep(600); }
    $capsule->getConnection()->insert("INSERT INTO public.ran VALUES (?)", [$data["n"]]);
    $job->delete();
} }
class Only implements Illuminate\Contracts\Queue\Factory {
    function connection($name = null) { global $queue; return $queue; } }
class Deaf implements Illuminate\Contracts\Events\Dispatcher {
    function listen($events, $listener = null) {} function hasListeners($event) {}
    function subscribe($subscriber) {} function until($event, $payload = []) {}
    function dispatch($event, $payload = [], $halt = false) {} function flush($event) {}
    function push($event, $payload = []) {} function forget($event) {} function forgetPushed() {}
}
class Loud implements Illuminate\Contracts\Debug\ExceptionHandler {
    function report(Throwable $e) { throw $e; } function shouldReport(Throwable $e) { return true; }
    function render($request, Throwable $e) {} function renderForConsole($output, Throwable $e) {}
}
function work($from) {
    $options = new Illuminate\Queue\WorkerOptions("one", 0, 128, 0, 0.1, 9);
    (new Illuminate\Queue\Worker(new Only, new Deaf, new Loud, fn () => false))
        ->daemon("database", $from, $options);
}
function migrate() {
    $stub = file_get_contents("/usr/share/php/Illuminate/Queue/Console/stubs/jobs.stub");
    eval("?>" . str_replace(["{{table}}", "{{tableClassName}}"], ["jobs", "Jobs"], $stub));
    (new CreateJobsTable)->up();
}
"""
SYMFONY = r"""
require "/usr/share/php/Symfony/Component/Messenger/Bridge/Doctrine/autoload.php";
    require "/usr/share/php/Doctrine/DBAL/autoload.php";
use Symfony\Component\Messenger\Bridge\Doctrine\Transport\Connection;
use Symfony\Component\Messenger\Bridge\Doctrine\Transport\DoctrineTransport;
use Symfony\Component\Messenger\Handler\HandlersLocator;
use Symfony\Component\Messenger\Middleware\HandleMessageMiddleware;
date_default_timezone_set("UTC");
$url = parse_url(getenv("URL"));
$dbal = Doctrine\DBAL\DriverManager::getConnection(["driver" => "pdo_pgsql",
    "host" => $url["host"], "port" => $url["port"],
    "dbname" => ltrim($url["path"], "/"), "user" => $url["user"], "password" => $url["pass"]]);
$dbal->executeStatement("SET search_path = their_php");
function transport($name) { global $dbal;
    return new Connection(Connection::buildConfiguration("doctrine://default?queue_name=$name"),
    $dbal); }
function tell($what) { echo "TOLD ", json_encode($what), "\n"; }
class Send { public $n; function __construct($n) { $this->n = $n; } }
function messages($name) { return new DoctrineTransport(transport($name),
    new Symfony\Component\Messenger\Transport\Serialization\PhpSerializer); }
function send($name, $n) { messages($name)->send(new Symfony\Component\Messenger\Envelope(
    new Send($n))); }
function work($name) { global $dbal;
    $handle = function (Send $message) use ($dbal) {
        if (getenv("HANGS")) { tell($message->n); sleep(600); }
        $dbal->executeStatement("INSERT INTO public.ran VALUES (?)", [$message->n]);
    };
    $bus = new Symfony\Component\Messenger\MessageBus([
        new HandleMessageMiddleware(new HandlersLocator([Send::class => [$handle]]))]);
    (new Symfony\Component\Messenger\Worker([$name => messages($name)], $bus))
        ->run(["sleep" => 100000]);
}
"""


_LACKING: dict[str, str] = {}
"""Prelude -> why it cannot run here; empty if it can."""


@dataclass(frozen=True)
class DebianApp:
    """A library in its own language; `prelude` runs before each script."""

    url: str
    words: tuple[str, ...]
    prelude: str
    schema: str

    def need(self) -> None:
        """Create the schema; skip, with the reason, where Debian's package is not installed."""
        with connect(self.url) as connection:
            connection.execute(f"CREATE SCHEMA {self.schema}".encode())
        if self.prelude not in _LACKING:
            _LACKING[self.prelude] = self._lacking()
        if why := _LACKING[self.prelude]:
            pytest.skip(why)

    def _lacking(self) -> str:
        if shutil.which(self.words[0]) is None:
            return f"{self.words[0]} is not here"
        with self.process("") as process:
            out, _ = process.communicate(timeout=60)
        return f"{self.words[0]} lacks the library: {out.strip()[-300:]}" * bool(process.returncode)

    def do(self, script: str) -> Any:
        """Run the script; the value that it prints, or None."""
        with self.process(script) as process:
            out, _ = process.communicate(timeout=120)
            assert process.returncode == 0, out
        printed = [line for line in out.splitlines() if line.startswith("TOLD ")]
        return json.loads(printed[-1].removeprefix("TOLD ")) if printed else None

    def leave(self, script: str) -> Any:
        """What a worker prints about the job at which it hangs; then its process is killed."""
        with self.process(script, hangs=True) as process:
            assert process.stdout is not None
            lines = []
            for line in process.stdout:
                lines.append(line)
                if line.startswith("TOLD "):
                    process.send_signal(signal.SIGKILL)
                    return json.loads(line.removeprefix("TOLD "))
        raise AssertionError("".join(lines))

    def process(
        self, script: str, *, hangs: bool = False
    ) -> AbstractContextManager["subprocess.Popen[str]"]:
        """Run the script; with `hangs` a job never ends after printing its number."""
        uri = make_url(self.url).set(drivername="postgresql").render_as_string(False)
        more = {"URL": uri, **({"HANGS": "yes"} if hangs else {})}
        return foreign_process([*self.words, self.prelude + script], more)

    def run(self, script: str) -> None:
        run_in(self.url, self.schema, script)


def delayed_job(url: str) -> DebianApp:
    return DebianApp(url, ("ruby", "-e"), RUBY, "their_ruby")


def laravel(url: str) -> DebianApp:
    return DebianApp(url, ("php", "-r"), LARAVEL, "their_php")


def symfony(url: str) -> DebianApp:
    return DebianApp(url, ("php", "-r"), SYMFONY, "their_php")


def discovered(console: Console, preset: str) -> list[str]:
    (found,) = console.done("discover", "--json").json["found"]
    assert found["preset"] == preset
    queues: list[str] = found["queues"]
    return queues


@pytest.mark.long
def test_delayed_job_is_discovered_counted_and_released(console: Console) -> None:
    theirs = delayed_job(console.url)
    theirs.need()
    theirs.run("CREATE TABLE public.ran (n integer)")
    own = theirs.do(
        """
        migrate
        2.times { |n| Delayed::Job.enqueue Send.new(n, true), queue: "mail" }
        Delayed::Worker.new(quiet: true).work_off
        4.times { |n| Delayed::Job.enqueue Send.new(n, false), queue: "mail" }
        Delayed::Job.enqueue Send.new(9, false), queue: "report", run_at: Time.now + 3600
        Delayed::Job.reserve(Delayed::Worker.new)
        tell Delayed::Job.ready_to_run("nobody", Delayed::Worker.max_run_time).count
        """
    )
    assert discovered(console, "delayed-job") == ["mail", "report"]
    console.done("adopt", "jobs", "--preset", "delayed-job")
    console.done("adopt", "mail", "--preset", "delayed-job", "--queue", "mail")
    assert figures(console, "jobs") == counts(own, 1, 1, 0, 2, None)
    assert figures(console, "mail") == counts(own, 0, 1, 0, 2, None)
    count, sample = error_group(console, "jobs")
    assert (count, sample.startswith("no host")) == (2, True)
    answer = console("requeue", "jobs", "--yes")
    assert (answer.status, "failed_at" in answer.err) == (4, True)
    (claim,) = console.done("messages", "jobs", "--state", "claimed", "--json").json["messages"]
    assert claim["claimed_by"].startswith("host:")
    console.done("release", "jobs", "--force", "--yes")
    theirs.do("Delayed::Worker.new(quiet: true).work_off")
    assert value(console.url, "SELECT string_agg(n::text, ' ' ORDER BY n) FROM ran") == "0 1 2 3"


@pytest.mark.long
def test_jobs_of_a_killed_delayed_job_worker_are_run_once_by_others(
    console: Console,
) -> None:
    theirs = delayed_job(console.url)
    theirs.need()
    theirs.run("CREATE TABLE public.ran (n integer)")
    # One job is being run; others are reserved, under the names of its threads.
    theirs.leave(
        """
        migrate
        40.times { |n| Delayed::Job.enqueue Send.new(n, false) }
        29.times { |n| worker = Delayed::Worker.new; worker.name = "thread #{n}";
            Delayed::Job.reserve(worker) }
        Delayed::Worker.new(quiet: true).start
        """
    )
    theirs.run(
        "UPDATE delayed_jobs SET locked_at = locked_at - interval '1 h' WHERE locked_at IS NOT NULL"
    )
    console.done("adopt", "jobs", "--preset", "delayed-job")
    assert figures(console, "jobs") == counts(10, 0, 30, 30, 0, None)
    worker = "Delayed::Worker.sleep_delay = 0.1; tell 1; Delayed::Worker.new(quiet: true).start"
    with theirs.process(worker), theirs.process(worker):
        console.done("release", "jobs", "--unknown", "--yes")
        left = "SELECT count(*) FROM their_ruby.delayed_jobs"
        wait_until(lambda: value(console.url, left) == 0, "its workers ran what was released")
    assert value(console.url, "SELECT count(*) || ' ' || count(DISTINCT n) FROM ran") == "40 40"


@pytest.mark.long
def test_laravel_is_discovered_counted_and_released(console: Console) -> None:
    theirs = laravel(console.url)
    theirs.need()
    ready, scheduled, claimed = theirs.do(
        """
        migrate();
        for ($n = 0; $n < 5; $n++) $queue->push("Send", ["n" => $n], "mail");
        $queue->later(3600, "Send", ["n" => 7], "mail"); $queue->push("Report", [], "report");
        for ($n = 0; $n < 2; $n++) $queue->pop("mail");
        $of = fn () => $capsule->getConnection()->table("jobs")->where("queue", "mail");
        tell([$queue->size("mail") - 3, $of()->where("available_at", ">", time())->count(),
            $of()->whereNotNull("reserved_at")->count()]);
        """
    )
    assert discovered(console, "laravel") == ["mail", "report"]
    console.done("adopt", "jobs", "--preset", "laravel")
    console.done("adopt", "mail", "--preset", "laravel", "--queue", "mail")
    assert figures(console, "mail") == counts(ready, scheduled, claimed, 0, None, None)
    assert figures(console, "jobs") == counts(4, 1, 2, 0, None, None)
    answer = console("requeue", "jobs", "--yes")
    assert (answer.status, "queue:retry" in answer.err) == (4, True)
    theirs.run("UPDATE jobs SET reserved_at = reserved_at - 3600 WHERE reserved_at IS NOT NULL")
    assert figures(console, "mail")["stuck"] == 2
    console.done("release", "mail", "--unknown", "--yes")
    taken = theirs.do(
        """
        $taken = [];
        while ($job = $queue->pop("mail")) $taken[] = [$job->payload()["data"]["n"],
            $job->attempts()];
        tell($taken);
        """
    )
    assert sorted(taken) == [[0, 2], [1, 2], [2, 1], [3, 1], [4, 1]]


@pytest.mark.long
def test_jobs_of_a_killed_laravel_worker_are_run_once_by_others(console: Console) -> None:
    theirs = laravel(console.url)
    theirs.need()
    theirs.run("CREATE TABLE public.ran (n integer)")
    theirs.do(
        """
        migrate();
        for ($n = 0; $n < 30; $n++) $queue->push("Send", ["n" => $n], "mail");
        """
    )
    left = [theirs.leave('work("mail");') for _ in range(2)]
    console.done("adopt", "jobs", "--preset", "laravel")
    assert figures(console, "jobs") == counts(28, 0, 2, 0, None, None)
    assert console.done("release", "jobs", "--dry-run", "--json").json["plan"]["count"] == 0
    theirs.run("UPDATE jobs SET reserved_at = reserved_at - 3600 WHERE reserved_at IS NOT NULL")
    with theirs.process('work("mail");'), theirs.process('work("mail");'):
        console.done("release", "jobs", "--unknown", "--yes")
        unfinished = "SELECT count(*) FROM their_php.jobs"
        wait_until(lambda: value(console.url, unfinished) == 0, "its workers ran all")
    assert sorted(left) == [0, 1]
    assert value(console.url, "SELECT count(*) || ' ' || count(DISTINCT n) FROM ran") == "30 30"


@pytest.mark.long
def test_the_message_of_a_killed_symfony_worker_is_redelivered_by_symfony(console: Console) -> None:
    theirs = symfony(console.url)
    theirs.need()
    theirs.run("CREATE TABLE public.ran (n integer)")
    theirs.do('transport("mail")->setup(); for ($n = 0; $n < 20; $n++) send("mail", $n);')
    assert theirs.leave('work("mail");') == 0
    console.done("adopt", "mail", "--preset", "symfony")
    assert figures(console, "mail") == counts(19, 0, 1, 0, None, None)
    with theirs.process('work("mail");'), theirs.process('work("mail");'):
        wait_until(lambda: value(console.url, "SELECT count(*) FROM ran") == 19, "the others")
        assert console("release", "mail", "--yes").status == 4
        assert figures(console, "mail") == counts(0, 0, 1, 0, None, None)
        theirs.run("UPDATE messenger_messages SET delivered_at = delivered_at - interval '2 h'")
        wait_until(lambda: value(console.url, "SELECT count(*) FROM ran") == 20, "what was left")
    assert value(console.url, "SELECT count(DISTINCT n) FROM ran") == 20


@pytest.mark.long
def test_symfony_is_discovered_counted_and_left_to_its_own_commands(console: Console) -> None:
    theirs = symfony(console.url)
    theirs.need()
    own = theirs.do(
        r"""
        $mail = transport("mail"); $mail->setup();
        for ($n = 0; $n < 5; $n++) $mail->send("{\"n\": $n}", ["type" => "App\Send"]);
        $mail->send("{}", ["type" => "App\Send"], 3600000); transport("failed")->send("{}",
            ["type" => "App\Send"]);
        $mail->get(); $mail->ack($mail->get()["id"]);
        tell($mail->getMessageCount());
        """
    )
    assert discovered(console, "symfony") == ["failed", "mail"]
    console.done("adopt", "mail", "--preset", "symfony", "--queue", "mail")
    console.done("adopt", "all", "--preset", "symfony")
    assert figures(console, "mail") == counts(own, 1, 1, 0, None, None)
    assert figures(console, "all")["ready"] == own + 1
    (claim,) = console.done("messages", "mail", "--state", "claimed", "--json").json["messages"]
    assert claim["title"] == "App\\Send"
    for verb, words in {
        "release": "redeliver_timeout",
        "requeue": "messenger:failed:retry",
    }.items():
        answer = console(verb, "mail", "--yes")
        assert (answer.status, words in answer.err) == (4, True)
    theirs.run("UPDATE messenger_messages SET delivered_at = delivered_at - interval '2 h'")
    assert figures(console, "mail")["ready"] == theirs.do(
        'tell(transport("mail")->getMessageCount());'
    )
