"""The preset of a library that is called mine.

python -m tests.contract.adding.use_mine URL
"""

import sys

from tests.cli.calls import Console


def use(here: Console) -> None:
    assert "mine" in here.done("adopt", "--help").text
    (found,) = here.done("discover", "--json").json["found"]
    assert (found["preset"], found["queues"]) == ("mine", ["orders"])
    here.done("adopt", "orders", "--preset", "mine")
    status = here.status("orders")
    assert (status["ready"], status["design"]) == (1, "mine")
    (message,) = here.done("messages", "orders", "--payload", "--json").json["messages"]
    assert message["payload"] == "{}"
    here("purge", "orders", "--yes", "orders").failed(4, "mine.purge_queue")
    (diagnosis,) = here("doctor", "orders", "--idle-for", "1s", "--json").json["queues"]
    assert diagnosis["findings"] == []
    here.done("forget", "orders")


if __name__ == "__main__":
    use(Console(sys.argv[1]))
