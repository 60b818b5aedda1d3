"""READ COMMITTED only: refused at any other level before a number is spent."""

import psycopg
import pytest
from psycopg import IsolationLevel

from tests.faults.ring_tools import Make, Ring

CALLS = (
    "SELECT {push}('late')",
    "SELECT * FROM {push_many}(ARRAY['late', 'later'])",
    "SELECT * FROM {pop}()",
    "SELECT * FROM {pop_many}(10)",
    "SELECT * FROM {relay}()",
    "SELECT * FROM {relay}(50)",
)
FINISHING_CALLS = ("SELECT {complete}(1)", "SELECT {fail}(1, 'no')")


@pytest.fixture(params=["off", "on"])
def ring(request: pytest.FixtureRequest, make: Make) -> Ring:
    """Both kinds of ring, with messages in it and one in hand."""
    made = make(in_hand=request.param)
    with made.connect() as connection:
        made.push_many(connection, ["one", "two", "three"])
        assert made.pop(connection)
    return made


@pytest.mark.parametrize("level", [IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE])
def test_refused_before_a_number_is_spent(ring: Ring, level: IsolationLevel) -> None:
    """Every function says what level it wants, and nothing in the ring changes."""
    calls = CALLS + (FINISHING_CALLS if ring.queue.finishes else ())
    with ring.connect() as connection, ring.connect() as other:
        before = (ring.measure(), ring.live(connection))
        other.autocommit = False
        other.isolation_level = level
        for call in calls:
            with pytest.raises(psycopg.Error, match="READ COMMITTED only") as refusal:
                other.execute(ring.sql(call))
            assert refusal.value.sqlstate == "DBQ02"
            assert refusal.value.diag.message_hint
            other.rollback()
        assert (ring.measure(), ring.live(connection)) == before


def test_allowed_at_read_uncommitted(ring: Ring) -> None:
    """Which is READ COMMITTED under another name."""
    with ring.connect() as connection:
        connection.autocommit = False
        connection.isolation_level = IsolationLevel.READ_UNCOMMITTED
        assert ring.push(connection, "four") == 4
        assert [message.id for message in ring.pop_many(connection, 10)] == [2, 3, 4]
        connection.commit()
