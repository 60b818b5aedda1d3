"""delayed_job, and the queues of Laravel and Symfony, as Debian has them: in their languages."""

import json
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from sqlalchemy import make_url

from tests.contract.child_processes import foreign_process
from tests.contract.libraries import LibraryApp, once

_RUBY = """
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
_LARAVEL = r"""
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
_SYMFONY = r"""
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
class DebianApp(LibraryApp):
    """An application in the library's own language. Its jobs are named by a number in each, and
    note it once they are run."""

    schema: str = "their_php"
    words: ClassVar[tuple[str, ...]] = ("php", "-r")
    prelude: ClassVar[str] = ""
    """Runs before each script."""
    makes: ClassVar[str] = "migrate();"
    """Creates the tables."""
    works: ClassVar[str] = 'work("mail");'
    """A worker, without end."""
    adds: ClassVar[str] = ""
    """Adds so many jobs to the queue `mail`."""

    def install(self) -> None:
        """Skips, with the reason, where Debian's package is not installed."""
        self.create("")
        if self.prelude not in _LACKING:
            _LACKING[self.prelude] = self._lacking()
        if why := _LACKING[self.prelude]:
            pytest.skip(why)
        self.do(self.makes)
        self.note_runs()

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

    def hang(self, script: str) -> Any:
        """What a worker prints about the job at which it hangs; then its process is killed."""
        with self.process(script, HANGS="yes") as process:
            assert process.stdout is not None
            lines = []
            for line in process.stdout:
                lines.append(line)
                if line.startswith("TOLD "):
                    process.send_signal(signal.SIGKILL)
                    return json.loads(line.removeprefix("TOLD "))
        raise AssertionError("".join(lines))

    def process(
        self, script: str, **environment: str
    ) -> AbstractContextManager["subprocess.Popen[str]"]:
        """Run the script; where something HANGS, a job never ends after printing its number."""
        uri = make_url(self.url).set(drivername="postgresql").render_as_string(False)
        return foreign_process([*self.words, self.prelude + script], {"URL": uri, **environment})

    def add(self, number: int) -> list[int]:
        self.do(self.adds % number)
        return list(range(number))

    def leave(self, number: int) -> list[int]:
        return [self.hang(self.works) for _ in range(number)]

    def working(self) -> AbstractContextManager[object]:
        return self.process(self.works)


class DelayedJobApp(DebianApp):
    preset: ClassVar[str] = "delayed-job"
    release: ClassVar[Sequence[str]] = ("--unknown",)
    words: ClassVar[tuple[str, ...]] = ("ruby", "-e")
    prelude: ClassVar[str] = _RUBY
    makes: ClassVar[str] = "migrate"
    works: ClassVar[str] = (
        "Delayed::Worker.sleep_delay = 0.1; Delayed::Worker.new(quiet: true).start"
    )
    adds: ClassVar[str] = '%d.times { |n| Delayed::Job.enqueue Send.new(n, false), queue: "mail" }'

    def leave(self, number: int) -> list[int]:
        """One job is being run; others are reserved, under the names of its threads."""
        reserves = """
        %d.times { |n| worker = Delayed::Worker.new; worker.name = "thread #{n}";
            Delayed::Job.reserve(worker) }
        """
        self.hang(reserves % (number - 1) + self.works)
        return list(range(number))

    def silence(self) -> None:
        self.run("UPDATE delayed_jobs SET locked_at = locked_at - interval '1 h'")


class LaravelApp(DebianApp):
    preset: ClassVar[str] = "laravel"
    release: ClassVar[Sequence[str]] = ("--unknown",)
    prelude: ClassVar[str] = _LARAVEL
    adds: ClassVar[str] = 'for ($n = 0; $n < %d; $n++) $queue->push("Send", ["n" => $n], "mail");'

    def silence(self) -> None:
        self.run("UPDATE jobs SET reserved_at = reserved_at - 3600")


class SymfonyApp(DebianApp):
    preset: ClassVar[str] = "symfony"
    keeps: ClassVar[str] = "redeliver_timeout"
    taken_back: ClassVar[bool] = True
    prelude: ClassVar[str] = _SYMFONY
    makes: ClassVar[str] = 'transport("mail")->setup();'
    adds: ClassVar[str] = 'for ($n = 0; $n < %d; $n++) send("mail", $n);'

    def recover(self) -> None:
        """Its workers take a message back after an hour."""
        self.run("UPDATE messenger_messages SET delivered_at = delivered_at - interval '2 h'")


@once
def delayed_job(url: str) -> DelayedJobApp:
    app = DelayedJobApp(url, "their_ruby")
    app.install()
    return app


@once
def laravel(url: str) -> LaravelApp:
    app = LaravelApp(url)
    app.install()
    return app


@once
def symfony(url: str) -> SymfonyApp:
    app = SymfonyApp(url)
    app.install()
    return app
