"""A catalog that names a design which this version does not know: that row alone is unknown."""

from console.monitor.snapshot import _FIGURES
from tests.cli.calls import Console
from tests.servers import connect

STRANGE = """
INSERT INTO dbq.queue (schema_name, queue_name, design, kind, options, roles, version) VALUES
('public', 'strange', 'wheel', 'adopted', '{"payload": {"a": 1}}', '[]', 7),
('public', 'built', 'wheel', 'installed', '{"payload": "xml"}', '{}', 7)
"""


def test_a_design_that_is_not_known_blinds_nothing_else(empty: Console) -> None:
    empty.done("install", "fifo", "orders")
    empty.done("push", "orders", "x")
    with connect(empty.url) as connection:
        connection.execute(STRANGE.encode())

    found = {one["queue"]: one for one in empty.done("status", "--json").json["queues"]}
    assert found["orders"]["ready"] == 1
    for name in ("strange", "built"):
        assert found[name]["problem"] == "design wheel is not known here"
        assert found[name]["design"] == "wheel"
        assert set(found[name]["unknown"]) == set(_FIGURES) - {"subscribers"}
    text = empty.done("status").text
    assert "design wheel is not known here" in text
    assert empty.done("status", "strange", "--json").json["queues"][0]["ready"] is None
    assert empty.done("discover", "--json").json["found"] == []

    examined = {
        one["queue"]: one for one in empty("doctor", "--idle-for", "0s", "--json").json["queues"]
    }
    assert examined["orders"]["findings"] == []
    assert examined["strange"]["unseen"] == ["design wheel is not known here"]
    assert "UNKNOWN strange: design wheel is not known here" in empty("check").text
    assert empty("check", "orders").status == 0
    for words in (["waits", "--seconds", "0.2"], ["audit"], ["roles"], ["report", "strange"]):
        assert empty(*words).status in {0, 1}, words
    for words in (
        ["messages", "strange"],
        ["push", "strange", "x"],
        ["requeue", "strange", "--yes"],
        ["maintain", "strange"],
        ["uninstall", "built", "--yes", "built"],
        ["forget", "built"],
    ):
        answer = empty(*words)
        assert (answer.status, answer.out) == (4, b""), answer
        assert "design wheel is not known here" in answer.err
    empty.done("forget", "strange")
    empty.done("install", "claim", "more")
