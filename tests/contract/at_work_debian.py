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
$queue = new DatabaseQueue($capsule->getConnection(), "jobs", "default", 90);
    $queue->setContainer($container); $queue->setConnectionName("database");
function tell($what) { echo "TOLD ", json_encode($what), "\n"; }
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
"""


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
        if shutil.which(self.words[0]) is None:
            pytest.skip(f"{self.words[0]} is not here")
        with self.process("") as process:
            out, _ = process.communicate(timeout=60)
        if process.returncode:
            pytest.skip(f"{self.words[0]} lacks the library: {out.strip()[-300:]}")

    def do(self, script: str) -> Any:
        """What the script tells; None where it tells nothing."""
        with self.process(script) as process:
            out, _ = process.communicate(timeout=120)
            assert process.returncode == 0, out
        told = [line for line in out.splitlines() if line.startswith("TOLD ")]
        return json.loads(told[-1].removeprefix("TOLD ")) if told else None

    def leave(self, script: str) -> Any:
        """What the script tells; then its process is killed."""
        with self.process(script) as process:
            assert process.stdout is not None
            lines = []
            for line in process.stdout:
                lines.append(line)
                if line.startswith("TOLD "):
                    process.send_signal(signal.SIGKILL)
                    return json.loads(line.removeprefix("TOLD "))
        raise AssertionError("".join(lines))

    def process(self, script: str) -> AbstractContextManager["subprocess.Popen[str]"]:
        uri = make_url(self.url).set(drivername="postgresql").render_as_string(False)
        return foreign_process([*self.words, self.prelude + script], {"URL": uri})

    def run(self, script: str) -> None:
        run_in(self.url, self.schema, script)


def delayed_job(url: str) -> DebianAtWork:
    return DebianAtWork(url, ("ruby", "-e"), RUBY, "their_ruby")


def laravel(url: str) -> DebianAtWork:
    return DebianAtWork(url, ("php", "-r"), LARAVEL, "their_php")


def symfony(url: str) -> DebianAtWork:
    return DebianAtWork(url, ("php", "-r"), SYMFONY, "their_php")
