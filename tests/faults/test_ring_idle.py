"""An idle queue is not written to: a pop of an empty ring leaves no trace."""

from tests.faults.ring_tools import Ring, make_ring
from tests.servers import wait_until

ROWS = """
    SELECT relname, n_tup_ins, n_tup_upd, n_tup_del FROM pg_stat_user_tables
    WHERE relname LIKE 'ring%' ORDER BY relname
"""

OTHERS = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
    AND backend_type = 'client backend'
"""


def test_pops_of_an_empty_ring_write_nothing(database_url: str) -> None:
    """Also where numbers are parked that no message will ever have."""
    for in_hand in ("off", "on"):
        ring = make_ring(database_url, f"ring_{in_hand}", size=50, in_hand=in_hand)
        with ring.connect() as popper:
            assert ring.push(popper, "a message") == 1
            assert ring.pop(popper)
        _pops_write_nothing(ring)
        with ring.connect() as popper:
            holes = "INSERT INTO {parked} SELECT -g, false, now() FROM generate_series(1, 300) AS g"
            popper.execute(ring.sql(holes))
        _pops_write_nothing(ring)


def test_a_full_ring_spends_no_number(database_url: str) -> None:
    """A push that finds it full leaves no trace either."""
    ring = make_ring(database_url, size=3)
    with ring.connect() as pusher:
        assert ring.push_many(pusher, list("abcd")) == [1, 2, 3, None]
        before = ring.measure()
        for _ in range(20):
            assert ring.push(pusher, "e") is None
            assert ring.push_many(pusher, ["f", "g"]) == [None, None]
        assert ring.measure() == before
        assert _transaction_number(ring, "{push}('e')") is None
    ring.close()


def _pops_write_nothing(ring: Ring) -> None:
    """No number, no row; and no transaction number, without which nothing can be written."""
    measured, rows = ring.measure(), _counted_rows(ring)
    with ring.connect() as popper:
        for _ in range(50):
            assert ring.pop(popper) is None
            assert ring.pop_many(popper, 100) == []
    assert (ring.measure(), _counted_rows(ring)) == (measured, rows)
    for call in ("{pop}()", "{pop_many}(100)"):
        assert _transaction_number(ring, call) is None


def _transaction_number(ring: Ring, call: str) -> object:
    """What PostgreSQL calls the call's transaction: a number from its first write or row lock."""
    with ring.connect() as connection:
        connection.execute("BEGIN")
        connection.execute(ring.sql(f"SELECT {call}"))
        row = connection.execute("SELECT pg_current_xact_id_if_assigned()").fetchone()
        assert row is not None
        return row[0]


def _counted_rows(ring: Ring) -> list[tuple[object, ...]]:
    """The server's counters, after all other sessions have gone: they count at the latest then."""
    ring.close()
    with ring.connect() as connection:
        wait_until(
            lambda: connection.execute(OTHERS).fetchone() == (0,), "all other sessions have gone"
        )
        return connection.execute(ROWS).fetchall()
