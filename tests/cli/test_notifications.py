"""Recorder processes that notify receivers of findings, and `notify test`; no secret is shown."""

import json
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.calls import Answer, Console, call, profile
from tests.cli.conftest import Install
from tests.servers import PATIENCE_SECONDS, execute, value, wait_until
from tests.servers.receivers import Receiver, receiving
from tests.tools.warm import Forked

SECRET = "hunter2-of-the-receiver"
PASSWORD = "hunter2-of-the-database"
CODE = "claims_nobody"


@pytest.fixture
def claimed(console: Console, install: Install) -> str:
    """A queue whose message was claimed an hour ago by an unnamed consumer; its name."""
    name = install("claim")
    console.done("push", name, "PAYLOAD")
    console.done("pop", name)
    claim(console, name, "1 hour")
    return name


def claim(console: Console, name: str, ago: str) -> None:
    execute(
        console.url,
        f'UPDATE public."{name}" SET claimed_by = NULL, '
        f"processing_started_at = now() - interval '{ago}'",
    )


def configured(tmp_path: Path, console: Console, receivers: str) -> dict[str, str]:
    """The environment of a recorder with these receivers."""
    file = tmp_path / "config.toml"
    text, password = profile(console.url, "orders", 'rights = "operator"')
    file.write_text(f'interval = "0.2s"\n{text}{receivers}', encoding="utf-8")
    return {
        "DBQ_CONFIG": str(file),
        "PW": password or PASSWORD,
        "TOKEN": SECRET,
        "XDG_STATE_HOME": str(tmp_path / "state"),
    }


def hook(receiver: Receiver, name: str = "hook") -> str:
    to = f'to = "webhook:{receiver.url}/x"\nsecret = "${{env:TOKEN}}"\n'
    return f'[notifications.{name}]\n{to}within = "0s"\nqueues = ["claim*"]\n'


@contextmanager
def recording(folder: Path, environment: dict[str, str]) -> Iterator[Forked]:
    """`dbq-console record` while it runs; its stderr is in FOLDER/said."""
    folder.mkdir()
    words = ["--log-level", "info", "record", "--recordings", str(folder)]
    environment = {**os.environ, **environment}
    with (
        (folder / "said").open("wb") as stderr,
        Forked(words, environment, stdout=subprocess.DEVNULL, stderr=stderr.fileno()) as process,
    ):
        try:
            yield process
        finally:
            process.terminate()


def events_of(receiver: Receiver, queue: str) -> list[str]:
    return [
        event["event"]
        for event in receiver.events
        if (event["queue"], event["code"]) == (queue, CODE)
    ]


def test_a_recorder_notifies_of_a_finding_and_the_next_recorder_of_its_end(
    console: Console, claimed: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    program = f"[notifications.page]\nto = \"exec:sh -c 'cat >{out}; env >>{out}'\"\nwithin='0s'\n"
    with receiving(Receiver(status=500, response_text=f"no {SECRET}")) as receiver:
        environment = configured(tmp_path, console, hook(receiver) + program)
        with recording(tmp_path / "a", environment) as first:
            wait_until(lambda: "not sent" in (tmp_path / "a" / "said").read_text(), "it is said")
            receiver.status = 200
            wait_until(lambda: events_of(receiver, claimed) == ["begun"], "it has come")
            wait_until(lambda: out.exists() and "HOME=" in out.read_text(), "the program ran")
            line = Path(f"/proc/{first.pid}/cmdline").read_bytes().decode()
            first.send_signal(signal.SIGTERM)
            assert first.wait(PATIENCE_SECONDS) == 0
        claim(console, claimed, "0 s")
        with recording(tmp_path / "b", environment):
            wait_until(lambda: events_of(receiver, claimed) == ["begun", "ended"], "it has ended")
    path, head, _ = receiver.requests[0]
    assert (path, head["Authorization"]) == ("/x", f"Bearer {SECRET}")
    begun, ended = (one for one in receiver.events if one["queue"] == claimed)
    assert begun["key"] == ended["key"]
    assert (begun["connection"], begun["severity"], begun["ended_at"]) == (
        "orders",
        "warning",
        None,
    )
    outputs = [(tmp_path / it / "said").read_text() for it in ("a", "b")]
    assert "orders: it sends the notifications to hook, page" in outputs[1]
    assert "answered HTTP 500: no ***" in outputs[0]
    given = out.read_text()
    event, _ = json.JSONDecoder().raw_decode(given)
    assert event["notifications"]
    log = (tmp_path / "state" / "dbq-console" / "dbq-console.log").read_text()
    assert "notifications to hook" in log
    for text in (*outputs, given, line, log):
        for secret in (SECRET, environment["PW"], "PAYLOAD"):
            assert secret not in text


@pytest.mark.long
def test_killing_one_of_two_recorders_loses_or_repeats_no_notification(
    console: Console, claimed: str, tmp_path: Path
) -> None:
    with receiving(Receiver()) as receiver:
        environment = configured(tmp_path, console, hook(receiver))
        with (
            recording(tmp_path / "a", environment) as first,
            recording(tmp_path / "b", environment) as second,
        ):
            outputs = {it: tmp_path / it / "said" for it in ("a", "b")}
            for path in outputs.values():
                wait_until(lambda of=path: "notifications" in of.read_text(), "they agree")  # type: ignore[misc]
            sending = [it for it, path in outputs.items() if "it sends" in path.read_text()]
            wait_until(lambda: events_of(receiver, claimed) == ["begun"], "it has come")
            assert len(sending) == 1
            count_sent = (
                f"SELECT count(sent_at) FROM dbq.notification WHERE queue_name = '{claimed}'"
            )
            wait_until(lambda: value(console.url, count_sent) == 1, "that is kept")
            (first if sending == ["a"] else second).kill()
            claim(console, claimed, "0 s")
            wait_until(lambda: events_of(receiver, claimed) == ["begun", "ended"], "it has ended")
            other = outputs["b" if sending == ["a"] else "a"]
            assert "by another recorder" in other.read_text()
            assert "it sends" in other.read_text()


def notify_test(tmp_path: Path, receivers: str, *more: str, **environment: str) -> Answer:
    """`notify test` with these receivers."""
    file = tmp_path / "config.toml"
    file.write_text(receivers, encoding="utf-8")
    given = {"DBQ_CONFIG": str(file), "TOKEN": SECRET, **environment}
    answer = call("notify", "test", *more, environment=given)
    assert SECRET not in answer.err + answer.text
    return answer


def test_a_test_notification_is_accepted_in_each_format(tmp_path: Path) -> None:
    with receiving(Receiver()) as receiver:
        at = f'to = "webhook:{receiver.url}/{{}}"\nsecret = "${{{{env:TOKEN}}}}"\n'
        tables = (
            "[notifications.json]\n" + at.format("plain"),
            "[notifications.slack]\ntemplate = 'slack'\n" + at.format("hook/{secret}"),
            "[notifications.pager]\ntemplate = 'pagerduty'\n" + at.format("v2/enqueue"),
            "[notifications.bell]\nto = 'bell'\n",
        )
        answer = notify_test(tmp_path, "".join(tables), "--json")
    assert answer.status == 0
    sent = {one["name"]: (one["sent"], one["response"]) for one in answer.json["receivers"]}
    assert sent["json"] == sent["slack"] == sent["pager"] == (True, "HTTP 200")
    assert sent["bell"] == (True, "there is no terminal, so nothing rings")
    by_path: dict[str, list[dict[str, Any]]] = {}
    for path, _, body in receiver.requests:
        by_path.setdefault(path, []).append(body)
    (plain,), (slack,) = by_path["/plain"], by_path[f"/hook/{SECRET}"]
    assert [one["event"] for one in plain["notifications"]] == ["begun", "ended"]
    assert list(slack) == ["text"]
    trigger, resolve = by_path["/v2/enqueue"]
    assert (trigger["event_action"], resolve["event_action"]) == ("trigger", "resolve")
    assert trigger["dedup_key"] == resolve["dedup_key"]
    assert trigger["routing_key"] == SECRET
    assert {"summary", "source", "severity"} <= set(trigger["payload"])


def test_a_test_notification_that_is_not_accepted_says_why(tmp_path: Path) -> None:
    with receiving(Receiver(status=403, response_text=f"invalid token {SECRET}\n")) as receiver:
        refused = notify_test(tmp_path, hook(receiver))
        gone = receiver.url
    assert refused.status == 1
    assert "not sent: answered HTTP 403: invalid token ***" in refused.text
    down = notify_test(tmp_path, hook(Receiver(url=gone)))
    assert down.status == 3
    assert "cannot be reached: Connection refused" in down.text
    with receiving(Receiver(garbage=True)) as receiver:
        assert "its answer is not HTTP" in notify_test(tmp_path, hook(receiver)).text
    with receiving(Receiver(status=302, headers={"Location": receiver.url})) as receiver:
        assert "answered HTTP 302" in notify_test(tmp_path, hook(receiver)).text
    for word, why in (("false", "exit status 1"), ("/no/such", "No such file")):
        answer = notify_test(tmp_path, f"[notifications.p]\nto = 'exec:{word}'\n")
        assert why in answer.text
    assert notify_test(tmp_path, "").status == 2


def test_a_test_notification_without_a_response_times_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("console.features.notify.targets.SECONDS", 0.2)
    with receiving(Receiver(silent=threading.Event())) as receiver:
        answer = notify_test(
            tmp_path, hook(receiver) + "[notifications.p]\nto = 'exec:sleep 600'\n"
        )
    assert answer.status == 3
    assert "hook (webhook:" in answer.text
    assert "did not answer within 0.2 s" in answer.text
    assert "did not end within 0.2 s" in answer.text


@pytest.mark.skipif(shutil.which("openssl") is None, reason="it makes the certificate")
def test_a_self_signed_certificate_is_not_trusted_by_default(tmp_path: Path) -> None:
    certificate = tmp_path / "both.pem"
    words = "req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost"
    files = ["-addext", "subjectAltName=DNS:localhost", "-keyout", "key.pem", "-out", "cert.pem"]
    command = ["openssl", *words.split(), *files]
    subprocess.run(command, cwd=tmp_path, capture_output=True, check=True)
    certificate.write_text("".join((tmp_path / f"{it}.pem").read_text() for it in ("key", "cert")))
    with receiving(Receiver(), certificate=certificate) as receiver:
        answer = notify_test(tmp_path, hook(receiver))
        assert answer.status == 3
        assert "its certificate is not trusted" in answer.text
        assert not receiver.requests
        trusted = notify_test(tmp_path, hook(receiver), SSL_CERT_FILE=str(tmp_path / "cert.pem"))
        assert trusted.status == 0
