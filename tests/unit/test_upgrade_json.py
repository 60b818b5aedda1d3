"""An upgrade's differences as JSON."""

from console.actions.upgrade import Difference, How


def test_the_keys_of_a_difference_stay() -> None:
    content = Difference("column", "orders.id", How.MISSING, repairable=False).as_json()
    assert list(content) == ["kind", "name", "how", "installed", "shipped", "mendable"]
    assert content["mendable"] is False
