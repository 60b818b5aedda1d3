"""Every verb on a queue of the added design, by the console whose package it was added to.

python -m tests.contract.adding.use_lanes URL
"""

import sys

from tests.cli.calls import Console
from tests.servers import execute, value


def use(here: Console) -> None:
    listed = {one["design"]: one for one in here.done("designs", "--json").json["designs"]}
    assert listed["lanes"]["engines"] == ["postgresql"]
    script = here.done("install", "lanes", "q", "--print", "--engine", "postgresql").text
    assert "(lane, id)" in script
    here.done("install", "lanes", "q", "--option", "max_bytes=100")
    here.done("push", "q", "-", "--lines", stdin=b"first\nsecond\nthird\n")
    assert here("push", "q", "x" * 101).status == 2
    assert value(here.url, "SELECT q_push('at once', 0)") is not None
    status = here.status("q")
    assert (status["ready"], status["design"]) == (4, "lanes")
    assert status["age_seconds"] > 0
    assert len(here.done("messages", "q", "--json").json["messages"]) == 4
    assert here.done("pop", "q", "--count", "2").out == b"at once\nfirst\n"
    (diagnosis,) = here.done("doctor", "q", "--idle-for", "0s", "--json").json["queues"]
    assert (diagnosis["findings"], diagnosis["unseen"]) == ([], [])
    assert "lanes" in here.done("report", "q", "--idle-for", "0s").text
    here.done("purge", "q", "--yes", "q")
    here.done("restore", "q", "--yes", "q")
    assert here.drained("q") == ["second", "third"]
    for verb in ("maintain", "upgrade"):
        here.done(verb, "q", "--dry-run")
    execute(here.url, "DROP INDEX q_lane_id_idx")
    broken = here("doctor", "q", "--idle-for", "0s", "--json")
    assert [one["code"] for one in broken.json["queues"][0]["findings"]] == ["index_missing"]
    assert here("doctor", "q", "--idle-for", "0s", "--fix", "--yes", "q").status == 0
    here.done("smoke", "q")
    here.done("uninstall", "q", "--with-messages", "--yes", "q")
    assert here.done("status", "--json").json["queues"] == []


if __name__ == "__main__":
    use(Console(sys.argv[1]))
