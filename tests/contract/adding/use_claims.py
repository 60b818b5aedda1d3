"""Every verb on a design with the tables of `status`, by the console in whose package it is.

python -m tests.contract.adding.use_claims DESIGN URL
"""

import sys

from tests.cli.calls import Console
from tests.servers import execute


def use(here: Console, design: str) -> None:
    here.done("install", design, "q", "--option", "max_bytes=100")
    here.done("push", "q", "-", "--lines", stdin=b"".join(b"%d\n" % n for n in range(8)))
    here.done("pop", "q", "--count", "2", "--complete")
    here.done("pop", "q", "--count", "2", "--fail", "no such mailbox")
    (claimed,) = here.popped("q")
    status = here.status("q")
    assert (status["ready"], status["claimed"], status["errors"]) == (3, 1, 2)
    (group,) = here.done("errors", "q", "--json").json["groups"]
    assert group["count"] == 2
    states = [one["state"] for one in here.done("messages", "q", "--json").json["messages"]]
    assert sorted(states) == ["claimed", "done", "done", "error", "error", *["ready"] * 3]
    here.done("complete", "q", str(claimed["id"]))
    (diagnosis,) = here("doctor", "q", "--json", "--idle-for", "1s").json["queues"]
    codes = {diagnosi["code"] for diagnosi in diagnosis["findings"]}
    assert codes - {"consumer_stopped", "consumers_unsaid"} == set(), "two errors are no share"
    for verb, done in (("requeue", 2), ("archive", 3), ("purge", 5), ("restore", 5)):
        assert here.done(verb, "q", "--yes", "q", "--json").json["done"] == done, verb
    here.popped("q")
    execute(here.url, "UPDATE q SET claimed_at = now() - interval '1 day' WHERE status = 1")
    released = here.done("release", "q", "--unknown", "--force", "--yes", "q", "--json")
    assert released.json["done"] == 1
    assert len(here.drained("q")) == 5
    for verb in ("maintain", "upgrade"):
        here.done(verb, "q", "--yes", "q")
    here.done("smoke", "q")
    here.done("bench", "--designs", design, "--seconds", "0.2", "--warmup", "0", "--rounds", "1")
    here.done("uninstall", "q", "--with-messages", "--yes", "q")
    assert here.done("status", "--json").json["queues"] == []


if __name__ == "__main__":
    use(Console(sys.argv[2]), sys.argv[1])
