"""What Service Broker tells of a queue, in words for an operator."""

import re
from dataclasses import replace

import pytest

from console.catalog import installed_queue
from console.designs import DESIGNS
from console.monitor.figures import BrokerHealth, StatusRow
from console.monitor.sample import QueueSample
from console.monitor.snapshot import snapshot

SOUND = BrokerHealth(
    is_receive_enabled=True,
    is_enqueue_enabled=True,
    broker_enabled=True,
    conversations=3,
    transmission=0,
    transmission_status=None,
)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"broker_enabled": False, "is_receive_enabled": False}, "ENABLE_BROKER"),
        ({"is_receive_enabled": False}, "poison message"),
        ({"is_enqueue_enabled": False}, "accepts no messages"),
        ({"transmission": 3, "transmission_status": "no route"}, "3 messages .*: no route"),
        ({"transmission": 10_001}, "^More than 10,000 messages cannot be delivered$"),
        ({"conversations": 1_101}, "1,101 conversations are open"),
    ],
)
def test_what_is_wrong_is_said(changed: dict[str, object], said: str) -> None:
    told = replace(SOUND, **changed)  # type: ignore[arg-type]  # fields by name
    assert re.search(said, told.problem(ready=50))


def test_a_sound_queue_has_no_problem_and_a_deep_one_many_conversations() -> None:
    assert SOUND.problem(ready=0) == ""
    assert replace(SOUND, conversations=9_000).problem(ready=5_000) == ""
    assert replace(SOUND, conversations=9_000).problem(ready=None) != ""


def test_a_queue_that_is_switched_off_still_has_its_figures() -> None:
    of = DESIGNS["broker"]
    queue = installed_queue("dbo", "mail", of, of.complete_options({}, "mssql"))
    figures = dict.fromkeys(StatusRow.__dataclass_fields__)
    row = StatusRow(**figures | {"schema": "dbo", "queue": "mail", "ready": 7})  # type: ignore[arg-type]
    seen = snapshot(QueueSample(queue, row, "The queue is disabled"), "c")
    assert (seen.ready, seen.problem) == (7, "The queue is disabled")
