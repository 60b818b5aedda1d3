"""How these tests call the command line: in this process, or in a separate one."""

import io
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import click
from sqlalchemy import make_url

from console import features
from console.cli import main
from console.cli.verbs import DeferredVerb, cli
from tests.servers import PATIENCE_SECONDS, value, wait_until
from tests.tools.warm import Forked

COMMAND = (sys.executable, "-m", "console.cli")
"""Starts a new process of it."""


def command(verb: str) -> click.Command:
    """The verb of that name, with its parameters."""
    found = cli.commands[verb]
    assert isinstance(found, DeferredVerb)
    return found.command


@dataclass(frozen=True)
class Answer:
    """A call's exit status and output."""

    status: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def json(self) -> Any:
        """The JSON object on stdout, which has nothing else."""
        assert self.out.endswith(b"\n")
        document = json.loads(self.out)
        assert isinstance(document, dict)
        return document

    def failed(self, status: int, *words: str) -> None:
        """It ended with this status and printed nothing; stderr has these words."""
        assert (self.status, self.out) == (status, b""), self
        missing = [word for word in words if word not in self.err]
        assert not missing, (missing, self)
        assert "Traceback" not in self.err, self


def _forget_presets() -> None:
    """A process reads its user's presets once, if it has them at all."""
    if not features.missing("presets"):
        from console.features.presets.designs.own import forget_read  # noqa: PLC0415

        forget_read()


def call(
    *arguments: str, stdin: bytes = b"", environment: Mapping[str, str] | None = None
) -> Answer:
    """Call `dbq-console` with these arguments in this process, as its entry point does."""
    source = io.TextIOWrapper(io.BytesIO(stdin), "utf-8")
    out = io.TextIOWrapper(io.BytesIO(), "utf-8")
    err = io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace")
    variables = {k: v for k, v in os.environ.items() if k != "DBQ_URL"} | dict(environment or {})
    with (
        mock.patch.multiple(sys, argv=["dbq-console", *arguments], stdin=source),
        mock.patch.multiple(sys, stdout=out, stderr=err),
        mock.patch.dict(os.environ, variables, clear=True),
    ):
        _forget_presets()
        try:
            main()
        except SystemExit as end:
            status = end.code
        finally:
            out.flush()
            err.flush()
    assert isinstance(status, int)
    return Answer(status, written(out), written(err).decode())


def written(stream: io.TextIOWrapper) -> bytes:
    assert isinstance(stream.buffer, io.BytesIO)
    return stream.buffer.getvalue()


@dataclass(frozen=True)
class Console:
    """The command line on one database, named by DBQ_URL."""

    url: str

    def __call__(self, *arguments: str, stdin: bytes = b"") -> Answer:
        return call(*arguments, stdin=stdin, environment={"DBQ_URL": self.url})

    def done(self, *arguments: str, stdin: bytes = b"") -> Answer:
        """Call it in this process; it must succeed."""
        answer = self(*arguments, stdin=stdin)
        assert answer.status == 0, answer
        return answer

    def install(self, design: str, name: str) -> None:
        """A queue of a design with options: `ring in_hand=on`."""
        shape, *options = design.split()
        given = [word for option in options for word in ("--option", option)]
        self.done("install", shape, name, *given)

    @contextmanager
    def process(
        self,
        *arguments: str,
        stdout: int = subprocess.PIPE,
        stdin: int = subprocess.DEVNULL,
        unbuffered: bool = False,
        encoding: str = "utf-8",
    ) -> Iterator["Process"]:
        """A separate process, killed at the end in any case."""
        environment = {"PYTHONUNBUFFERED": "1" if unbuffered else "", "PYTHONIOENCODING": encoding}
        with Process(self.url, arguments, environment, stdout=stdout, stdin=stdin) as running:
            try:
                yield running
            finally:
                running.kill()

    def run(self, *arguments: str, stdin: bytes = b"") -> Answer:
        """Call it in a separate process."""
        with self.process(*arguments, stdin=subprocess.PIPE) as running:
            out, err = running.communicate(stdin, timeout=PATIENCE_SECONDS)
        return Answer(running.returncode, out, err.decode())

    def run_with_closed(self, stream: str, *arguments: str) -> Answer:
        """Call it in a separate process, without its stdin or stdout."""
        closing = {"stdin": "<&-", "stdout": ">&-"}[stream]
        done = subprocess.run(
            ["/bin/sh", "-c", f'exec "$@" {closing}', "sh", *COMMAND, *arguments],
            env=os.environ | {"DBQ_URL": self.url},
            capture_output=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        return Answer(done.returncode, done.stdout, done.stderr.decode())

    def popped(self, name: str, *options: str) -> list[dict[str, Any]]:
        """The messages of one `pop --json`."""
        json = self("pop", name, "--json", *options).json
        assert set(json) == {"messages"}
        messages: list[dict[str, Any]] = json["messages"]
        return messages

    def drained(self, name: str) -> list[str]:
        """Pop everything that can be popped now; the payloads."""
        return [message["payload"] for message in self.popped(name, "--count", "1000000")]

    def status(self, name: str) -> dict[str, Any]:
        (queue,) = self.done("status", name, "--json").json["queues"]
        assert isinstance(queue, dict)
        return queue


def profile(url: str, name: str, *lines: str) -> tuple[str, str]:
    """Its table in a configuration, and its password, which must be in the variable PW."""
    at = make_url(url)
    shown = at.set(password="PW").render_as_string(hide_password=False)
    shown = shown.replace(":PW@", ":${env:PW}@")
    return "\n".join((f"[profiles.{name}]", f'url = "{shown}"', *lines, "")), at.password or ""


_numbers = itertools.count(1)


class Process(Forked):
    """A call in a separate process, which the server knows by a unique name."""

    def __init__(
        self,
        url: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        *,
        stdout: int,
        stdin: int,
    ) -> None:
        self.name = f"call {next(_numbers)}"
        self.url = url
        named = make_url(url).update_query_dict({"application_name": self.name})
        variables = {"DBQ_URL": named.render_as_string(hide_password=False), **environment}
        super().__init__(arguments, os.environ | variables, stdin=stdin, stdout=stdout)

    def sessions(self) -> int:
        """How many sessions it has on the server now."""
        found = value(
            self.url,
            f"SELECT count(*) FROM pg_stat_activity WHERE application_name = '{self.name}'",
        )
        assert isinstance(found, int)
        return found

    def wait_for_session(self) -> None:
        wait_until(lambda: self.sessions() > 0, "a session")

    def wait_for_no_session(self) -> None:
        """Wait until the server has noticed its end."""
        wait_until(lambda: self.sessions() == 0, "no session any more")
