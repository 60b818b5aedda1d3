"""Queues that were adopted, on a console without the feature by which they were.

`jobs` is a table of the design fifo, `orders` a queue of pgmq, `parcels` one of a user's preset.

python -m tests.contract.adding.use_presets_off URL
"""

import sys

from tests.cli.calls import Console

OFF = {
    "orders": "its design pgmq needs the feature presets, which is off",
    "parcels": "its design parcel needs the feature presets, which is off",
}

if __name__ == "__main__":
    here = Console(sys.argv[1])
    here.done("install", "fifo", "mail")
    here.done("push", "mail", "a")
    listed = {queue["queue"]: queue for queue in here.done("status", "--json").json["queues"]}
    assert (listed["mail"]["ready"], listed["jobs"]["ready"]) == (1, 1)
    (message,) = here.done("messages", "jobs", "--payload", "--json").json["messages"]
    assert message["payload"] == "card"
    text, check = here.done("status").text, here("check").text
    doctor = here("doctor", "--idle-for", "0s", "--json").json
    examined = {queue["queue"]: queue for queue in doctor["queues"]}
    for name, why in OFF.items():
        assert (listed[name]["ready"], listed[name]["problem"]) == (None, why)
        assert why in text
        assert f"UNKNOWN {name}: {why}" in check
        assert examined[name]["unseen"] == [why]
        for words in (["messages", name], ["push", name, "x"], ["requeue", name, "--yes"]):
            refused = here(*words)
            assert (refused.status, refused.out) == (4, b"")
            assert why in refused.err
            assert "Install a dbq-console that has it." in refused.err
        here.done("forget", name)
