"""`dbq-console roles`: SQL to be read and run by somebody who may make roles."""

import re

from tests.cli.calls import Console, call


def test_without_a_database_it_is_the_roles_alone() -> None:
    answer = call("roles", "--engine", "postgresql")
    assert (answer.status, answer.err) == (0, "")
    assert set(re.findall(r"CREATE ROLE (\w+)", answer.text)) == {
        "dbq_reader",
        "dbq_operator",
        "dbq_admin",
    }
    assert "_push" not in answer.text
    assert call("roles", "--engine", "postgresql", "--json").json == {"sql": answer.text}
    refused = call("roles")
    assert refused.status == 2
    assert "--engine" in refused.err


def test_with_a_database_it_has_the_rights_on_each_of_its_queues(empty: Console) -> None:
    empty.done("install", "ring", "orders", "--option", "size=10")
    empty.done("install", "fifo", 'od"d')
    script = empty.done("roles").text
    assert 'GRANT SELECT ON "public"."orders", "public"."orders_archive" TO dbq_reader' in script
    assert '"public"."od""d_pop_many"' in script
    assert "relay" in script
