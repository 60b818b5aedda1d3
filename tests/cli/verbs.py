"""Every verb of the command line, what it needs to be called, and how one is refused."""

from collections.abc import Iterator

import click

from console.cli.verbs import cli
from tests.cli.calls import Answer, command

PASSWORD = "s3cr3t"
UNREACHABLE = f"postgresql+psycopg://somebody:{PASSWORD}@127.0.0.1:1/nowhere"


def refused(answer: Answer, status: int, *complaints: str) -> None:
    """On stderr are all complaints, but no password or traceback; on stdout nothing, or the
    error as one object."""
    assert answer.status == status, answer
    assert_no_result(answer)
    assert PASSWORD not in answer.text
    for complaint in complaints:
        assert complaint in answer.err
    assert PASSWORD not in answer.err
    assert "Traceback" not in answer.err


def assert_no_result(answer: Answer) -> None:
    """No result is on stdout; with --json, the error is."""
    if answer.out:
        assert set(answer.json) == {"error"}
        assert answer.json["error"]["exit"] == answer.status


def verbs() -> Iterator[tuple[str, click.Command]]:
    """Every verb with its words; a group counts as its verbs."""
    for name in cli.commands:
        verb = command(name)
        if isinstance(verb, click.Group):
            yield from ((f"{name} {part}", one) for part, one in verb.commands.items())
        else:
            yield name, verb


WRITING = {
    "push q x": "operator",
    "complete q 1": "operator",
    "fail q 1 --error no": "operator",
    "pop q": "operator",
    "requeue q": "operator",
    "release q": "operator",
    "purge q": "operator",
    "purge q --permanently": "admin",
    "archive q": "operator",
    "restore q": "operator",
    "reschedule q --in 1h": "operator",
    "maintain q": "operator",
    "end-session q 1": "operator",
    "doctor q --fix": "operator",
    "pipeline archive q": "operator",
    "pipeline replay q": "operator",
    "install fifo q": "admin",
    "upgrade q": "admin",
    "uninstall q": "admin",
    "adopt q --design fifo --map id=a --map payload=b": "admin",
    "forget q": "admin",
    "smoke q": "admin",
    "bench": "admin",
    "prove": "admin",
    "relay q": "admin",
    "resize q 5": "admin",
}
"""Every verb that writes, and the right that it needs."""
READING = (
    *("status q", "messages q", "errors q", "waits q", "consumers q", "doctor q", "report q"),
    *("stuck q", "check q", "discover", "audit"),
)
OF_A_QUEUE = [
    words
    for words in (*READING, *WRITING)
    if " q" in words and not words.startswith(("install", "adopt", "pipeline"))
]
"""Verbs that look up a queue."""


def of_queue(words: str, name: str) -> list[str]:
    return [name if word == "q" else word for word in words.split()]


FAIL_UNLESS_READ_ONLY = """
CREATE FUNCTION dbq.must_be_read_only() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('transaction_read_only') <> 'on' THEN
        RAISE 'this transaction may write';
    END IF;
    RETURN true;
END $$;
ALTER TABLE dbq.queue RENAME TO real_queue;
CREATE VIEW dbq.queue AS SELECT * FROM dbq.real_queue WHERE dbq.must_be_read_only();
CREATE VIEW public.looked_at AS SELECT 1 AS id, 'x' AS payload WHERE dbq.must_be_read_only();
INSERT INTO dbq.real_queue (schema_name, queue_name, design, kind, options, roles, version)
VALUES (
    'public', 'looked_at', 'fifo', 'adopted', '{"view": "yes"}',
    '{"id": "id", "payload": "payload"}', 1
);
"""
