"""Delayed::Job, Laravel's queue and Symfony Messenger, as Debian has them,
in Ruby and PHP of their own."""

import json
import shutil
import signal
import subprocess
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import make_url

from tests.contract.foreign_process import foreign_process
from tests.servers import connect, run_in

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
"""Prelude -> why it cannot run here; empty where it can."""


@dataclass(frozen=True)
class DebianAtWork:
    """A library in its own language: `prelude` says what a script of its finds there."""

    url: str
    words: tuple[str, ...]
    prelude: str
    schema: str

    def need(self) -> None:
        """Skips, with the reason, where Debian's package is not installed."""
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
        """What the script tells; None where it tells nothing."""
        with self.process(script) as process:
            out, _ = process.communicate(timeout=120)
            assert process.returncode == 0, out
        told = [line for line in out.splitlines() if line.startswith("TOLD ")]
        return json.loads(told[-1].removeprefix("TOLD ")) if told else None

    def leave(self, script: str) -> Any:
        """What a worker tells of the job that it hangs at; then its process is killed."""
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
        """It runs the script; with `hangs` a job never ends once it has told which it is."""
        uri = make_url(self.url).set(drivername="postgresql").render_as_string(False)
        more = {"URL": uri, **({"HANGS": "yes"} if hangs else {})}
        return foreign_process([*self.words, self.prelude + script], more)

    def run(self, script: str) -> None:
        run_in(self.url, self.schema, script)


def delayed_job(url: str) -> DebianAtWork:
    return DebianAtWork(url, ("ruby", "-e"), RUBY, "their_ruby")


def laravel(url: str) -> DebianAtWork:
    return DebianAtWork(url, ("php", "-r"), LARAVEL, "their_php")


def symfony(url: str) -> DebianAtWork:
    return DebianAtWork(url, ("php", "-r"), SYMFONY, "their_php")
