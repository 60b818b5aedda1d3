"""A session whose commit was cut off takes the next transaction."""

from contextlib import closing

import pytest
from sqlalchemy import text

from console.engines import Session, open_database
from console.errors import ConsoleError
from tests.servers import connect


def _cut_off(session: Session, url: str) -> None:
    with session.transaction("do the first") as connection:
        pid = connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
        with connect(url) as admin:
            admin.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])


def test_after_a_commit_without_an_answer(database_url: str) -> None:
    with closing(open_database(database_url)) as database, database.session("work") as session:
        with pytest.raises(ConsoleError, match="do the first"):
            _cut_off(session, database_url)
        with session.transaction("do the second") as connection:
            assert connection.execute(text("SELECT 2")).scalar_one() == 2
