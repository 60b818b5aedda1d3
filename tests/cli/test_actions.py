"""Verbs that change messages and queues: plan, confirmation, execution, audit; restore, maintain,
upgrade, end-session."""

import json
import signal
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.cli.calls import Answer, Console
from tests.cli.conftest import Install
from tests.servers import PATIENCE_SECONDS, connect, execute, value, wait_until


@pytest.fixture
def mail(console: Console, install: Install) -> str:
    """A claim queue with 5 ready messages and 3 in error."""
    name = install("claim")
    console.done("push", name, "-", "--lines", stdin=b"a\nb\nc\n")
    console.popped(name, "--count", "3", "--fail", "time-out")
    console.done("push", name, "-", "--lines", stdin=b"d\ne\nf\ng\nh\n")
    return name


def states(console: Console, name: str) -> tuple[int, int, int]:
    status = console.status(name)
    return status["ready"], status["claimed"], status["errors"]


def only_planned(answer: Answer) -> dict[str, Any]:
    assert answer.status == 4, answer
    assert answer.json["done"] == 0
    assert "Nothing was changed" in answer.err
    plan = answer.json["plan"]
    assert isinstance(plan, dict)
    return plan


def test_without_yes_a_verb_only_plans(console: Console, mail: str) -> None:
    nothing = console.done("release", mail, "--json").json
    assert (nothing["plan"]["count"], nothing["done"]) == (0, False), "where nothing is needed"
    assert console.done("release", mail, "--yes", "--json").json["result"]["action_id"] is None
    three = {"error": {"count": 3, "estimated": False}}
    for verb, count in (("purge", 8), ("requeue", 3), ("archive", 3)):
        plan = only_planned(console(verb, mail, "--json"))
        assert (plan["count"], plan["totals"] == three) == (count, count == 3)
        plain = console(verb, mail)
        assert plain.status == 4
        assert f"{count:,} messages" in plain.text
        dry = console.done(verb, mail, "--dry-run", "--json", "--yes", mail)
        assert (dry.json["done"], dry.err) == (0, "")
    assert states(console, mail) == (5, 0, 3)


def test_a_few_rows_need_a_bare_yes_and_a_purge_needs_the_name(console: Console, mail: str) -> None:
    done = console.done("requeue", mail, "--yes", "--filter", "limit=2", "--json").json
    result = done["result"]
    assert (result["verb"], result["outcome"], result["planned"]) == ("requeue", "done", 2)
    assert (result["done"], result["skipped"], result["failed"]) == (2, {}, {})
    plan = only_planned(console("purge", mail, "--yes", "--json"))
    assert plan["confirmation"] == "name"
    only_planned(console("purge", mail, "--yes", "another", "--json"))
    assert states(console, mail) == (7, 0, 1)
    done = console.done("purge", mail, "--yes", mail, "--json", "--reason", "ticket 1").json
    assert done["result"]["done"] == done["plan"]["count"] == 8
    assert states(console, mail) == (0, 0, 0)
    nothing = console.done("purge", mail, "--yes", "--json").json["result"]
    assert (nothing["done"], nothing["action_id"]) == (0, None)


def test_a_production_database_requires_the_name(empty: Console) -> None:
    empty.done("install", "claim", "mail")
    empty.done("push", "mail", "a")
    empty.popped("mail", "--fail", "boom")
    execute(empty.url, "INSERT INTO dbq.setting VALUES ('production', 'on')")
    plan = only_planned(empty("requeue", "mail", "--yes", "--json"))
    assert plan["production"] is True
    assert "PRODUCTION" in empty("requeue", "mail").text
    assert empty.done("requeue", "mail", "--yes", "mail", "--json").json["result"]["done"] == 1


def test_in_production_all_queues_require_the_name_of_the_connection(empty: Console) -> None:
    empty.done("install", "claim", "mail")
    execute(empty.url, "DROP FUNCTION public.mail_push_many")
    assert empty("upgrade", "--all", "--yes", "").status == 4, "no word"
    execute(empty.url, "INSERT INTO dbq.setting VALUES ('production', 'on')")
    refused = empty("upgrade", "--all", "--yes")
    assert (refused.status, "the connection's name" in refused.err) == (4, True)
    name = refused.err.split("--yes ")[-1].strip()
    done = empty.done("upgrade", "--all", "--yes", name, "--json").json
    assert [one["done"] for one in done["queues"]] == [1]


def test_unsupported_filters_and_verbs_are_usage_errors(
    console: Console, mail: str, install: Install
) -> None:
    for verb, words, complaint in (
        ("purge", ["state=claimed"], "takes no messages in the state"),
        ("archive", ["state=ready"], "takes no messages in the state"),
        ("requeue", ["nonsense=1"], "cannot be read"),
        ("purge", ["keep-newest=1"], "needs one state"),
        ("purge", ["older=5m", "newer=10m", "id=x"], "is not a key of the queue"),
        ("purge", ["payload.a=1"], "no payload with paths"),
    ):
        filters = [word for text in words for word in ("--filter", text)]
        console(verb, mail, *filters, "--yes", mail).failed(2, complaint)
    assert states(console, mail) == (5, 0, 3)
    console("requeue", install("fifo"), "--yes").failed(2, "has no verb requeue")


def test_missing_rights_are_refused_and_the_refusals_recorded(
    console: Console, mail: str, state: Path
) -> None:
    console("purge", mail, "--rights", "read-only", "--yes", mail).failed(
        4, "needs the right operator"
    )
    console("purge", mail, "--rights", "operator", "--permanently", "--yes", mail).failed(
        4, "needs the right admin"
    )
    only_planned(console("purge", mail, "--json"))
    assert states(console, mail) == (5, 0, 3)
    recorded = [json.loads(line) for line in state.read_text().splitlines()]
    assert [one["outcome"] for one in recorded] == ["refused"] * 3
    assert {one["verb"] for one in recorded} == {"purge"}


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "dbq-console" / "audit.jsonl"


def test_the_audit_lists_the_newest_action_first(console: Console, mail: str, state: Path) -> None:
    console.done("requeue", mail, "--yes", "--filter", "error~time")
    console.done("purge", mail, "--yes", mail, "--reason", "ticket 1")
    actions = console.done("audit", mail, "--json").json["actions"]
    assert actions.pop()["verb"] == "install"
    assert [(action["verb"], action["done"], action["outcome"]) for action in actions] == [
        ("purge", 8, "done"),
        ("requeue", 3, "done"),
    ]
    assert actions[1]["filters"] == "error~time"
    assert "ticket 1" in actions[0]["detail"]
    assert console.done("audit", mail, "--verb", "purge", "--json").json["actions"] == actions[:1]
    assert console.done("audit", mail, "--operator", "nobody", "--json").json["actions"] == []
    assert console.done("audit", mail, "--running", "--json").json["actions"] == []
    assert "requeue" in console.done("audit", mail, "--since", "1h").text
    lines = [json.loads(line) for line in state.read_text().splitlines()]
    assert [(line["verb"], line["done"]) for line in lines] == [("requeue", 3), ("purge", 8)]
    assert state.stat().st_mode & 0o077 == 0


def test_the_audit_knows_which_verbs_there_are(console: Console, mail: str) -> None:
    """A verb that is not recorded yet has no actions; one that there is not is a wrong usage."""
    for verb in ("archive", "repair", "adopt"):
        assert console.done("audit", mail, "--verb", verb, "--json").json["actions"] == []
    console("audit", mail, "--verb", "nosuch").failed(
        2, "There is no verb 'nosuch'", "install", "purge"
    )


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_stops_after_the_batch_and_the_rest_can_be_done(
    console: Console, install: Install, number: signal.Signals, status: int
) -> None:
    name = install("fifo")
    console.done("push", name, "-", "--lines", stdin=b"".join(b"%d\n" % n for n in range(300)))
    slow = ["purge", name, "--yes", name, "--rate", "50", "--batch", "10"]
    with console.process(*slow) as running:
        wait_until(lambda: bool(done_so_far(console, name)), "a first batch")
        (acting,) = console.status(name)["acting"]
        assert (acting["verb"], acting["planned"]) == ("purge", 300)
        running.send_signal(number)
        _, err = running.communicate(timeout=PATIENCE_SECONDS)
    assert running.returncode == status
    assert b"Stopping after this batch" in err
    assert console.status(name)["acting"] == []
    (entry,) = console.done("audit", name, "--verb", "purge", "--json").json["actions"]
    assert entry["outcome"] == "stopped"
    assert 0 < entry["done"] < 300
    rest = console.done("purge", name, "--yes", name, "--json").json["result"]
    assert rest["done"] == 300 - entry["done"]


def test_a_ring_that_fills_up_during_a_requeue_is_not_an_interrupt(
    console: Console, install: Install
) -> None:
    """Another session takes its slots between the plan and the batches."""
    mail, ring = install("claim"), install("ring", "size=30")
    lines = b"".join(b"%d\n" % n for n in range(30))
    console.done("push", mail, "-", "--lines", stdin=lines)
    console.done("pop", mail, "--count", "30", "--fail", "no")
    to_ring = ("requeue", mail, "--to", ring, "--yes", "--batch", "1", "--rate", "1")
    with console.process(*to_ring, "--json") as running:
        wait_until(lambda: bool(done_so_far(console, mail)), "a first batch")
        console("push", ring, "-", "--lines", stdin=lines)
        out, err = running.communicate(timeout=PATIENCE_SECONDS)
    result = json.loads(out)["result"]
    assert (running.returncode, b"Interrupted" in err) == (4, False)
    assert (result["outcome"], result["done"] < 30) == ("stopped", True)
    assert f"{ring} is full: the rest is still in error here" in result["problem"]
    assert console.status(mail)["errors"] == 30 - result["done"]


def done_so_far(console: Console, name: str) -> object:
    return value(
        console.url, f"SELECT max(a.done) FROM dbq.action AS a WHERE a.queue_name = '{name}'"
    )


def test_release_spares_claims_whose_owner_is_alive_unless_forced(
    console: Console, install: Install
) -> None:
    name = install("claim")
    console.done("push", name, "-", "--lines", stdin=b"a\nb\nc\nd\n")
    pop = f"SELECT id, attempts FROM \"{name}_pop\"('worker', bound => true)"
    with connect(console.url) as living, connect(console.url) as dying:
        (kept,) = living.execute(pop.encode()).fetchall()
        dying.execute(pop.encode())
        (pid,) = dying.execute("SELECT pg_backend_pid()").fetchone() or (0,)
        (alive,) = living.execute("SELECT pg_backend_pid()").fetchone() or (0,)
        living.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
        plan = only_planned(console("release", name, "--json"))
        assert plan["count"] == 1
        assert console.done("release", name, "--yes", "--json").json["result"]["done"] == 1
        assert states(console, name) == (3, 1, 0)

        # The owner of the other one is alive: it is skipped, and the plan names that session.
        refused = console.done("release", name, "--yes")
        assert "0 of 0 done" in refused.text
        assert "their owner is alive" in refused.err
        assert f"session {alive} " in refused.err
        console.done("release", name, "--force", "--yes")
        assert states(console, name) == (4, 0, 0)
        late = f'SELECT "{name}_complete"(%s, %s)'
        assert living.execute(late.encode(), list(kept)).fetchone() == (False,)
        assert states(console, name) == (4, 0, 0)


@pytest.mark.long
def test_archive_with_every_runs_until_it_is_stopped(console: Console, install: Install) -> None:
    name = install("status")
    every = ["archive", name, "--every", "100ms", "--older", "0.01ms", "--yes"]
    with console.process(*every) as running:
        running.wait_for_session()
        for count in (3, 5):
            console.done("push", name, "-", "--lines", stdin=b"a\n" * count)
            console.popped(name, "--count", str(count), "--complete")
            wait_until(lambda: console.status(name)["done"] == 0, "an empty queue")
        running.send_signal(signal.SIGTERM)
        out, err = running.communicate(timeout=PATIENCE_SECONDS)
    assert running.returncode == 0, err
    assert sum(int(line.split()[1]) for line in out.splitlines()) == 8


@pytest.mark.long
def test_archive_waits_while_the_queue_is_hot(console: Console, install: Install) -> None:
    name = install("status")
    console.done("push", name, "-", "--lines", stdin=b"a\nb\nc\n")
    console.popped(name, "--complete")
    every = ["archive", name, "--every", "50ms", "--hot-above", "1", "--yes"]
    with console.process(*every) as running:
        assert running.stderr is not None
        assert b"2 messages are ready, more than 1" in running.stderr.readline()
        assert console.status(name)["done"] == 1
        console.popped(name, "--complete")
        wait_until(lambda: console.status(name)["done"] == 0, "an archive that goes on")
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=PATIENCE_SECONDS)


def test_several_ids_select_exactly_those_messages(console: Console, mail: str) -> None:
    def ids(*filters: str) -> list[str]:
        listed = console.done("messages", mail, "--json", *filters).json["messages"]
        return [message["id"] for message in listed]

    chosen = [*ids("--state", "ready")[:2], *ids("--state", "error")[:1]]
    words = [word for one in (*chosen, chosen[0].upper()) for word in ("--filter", f"id={one}")]
    assert ids(*words) == chosen
    done = console.done("purge", mail, *words, "--batch", "2", "--yes", mail, "--json").json
    assert done["plan"]["filters"] == [*(f"id={one}" for one in chosen), f"id={chosen[0].upper()}"]
    assert done["result"]["done"] == done["plan"]["count"] == 3
    assert states(console, mail) == (3, 0, 2)
    assert not set(chosen) & set(ids())
    back = ["--filter", f"id={chosen[2]}", "--filter", f"id={chosen[0]}"]
    assert console.done("restore", mail, *back, "--yes", "--json").json["result"]["done"] == 2
    assert set(ids()) & set(chosen) == {chosen[0], chosen[2]}
    console("purge", mail, *words, "--filter", "keep-newest=1", "--filter", "state=error").failed(
        2, "several ids"
    )
    paged = console("messages", mail, *words, "--limit", "1", "--json")
    assert (len(paged.json["messages"]), paged.json["complete"]) == (1, False)


def test_a_canary_without_a_result_is_exit_4_and_says_how_to_continue(
    console: Console, install: Install
) -> None:
    name = install("claim")
    console.done("push", name, "-", "--lines", stdin=b"1\n2\n3\n")
    console.done("pop", name, "--count", "3", "--fail", "no route")
    how = ("--canary", "--canary-wait", "0s", "--yes")
    answer = console("requeue", name, *how, "--json")
    assert answer.status == 4
    result = answer.json["result"]
    assert (result["outcome"], result["done"], result["planned"]) == ("stopped", 1, 3)
    assert result["canary"]["verdict"] == "unknown"
    assert (result["canary"]["done"], len(result["canary"]["waiting"])) == ([], 1)
    assert "after 1 and after 10 it waits up to" in answer.json["plan"]["canary"]
    again = console("requeue", name, *how)
    assert again.status == 4
    assert "longer --canary-wait, or without --canary" in again.text
    assert "without a verdict" in console.done("purge", name, "--canary", "--dry-run").text
    assert console("requeue", name, "--canary-wait", "5s", "--yes").status == 2


@pytest.fixture
def four(console: Console, install: Install) -> str:
    """A fifo queue with 4 messages."""
    name = install("fifo")
    console.done("push", name, "-", "--lines", stdin=b"a\nb\nc\nd\n")
    return name


def test_purged_messages_can_be_restored(console: Console, four: str) -> None:
    first = console.done("purge", four, "--filter", "limit=1", "--yes", four, "--json").json
    console.done("purge", four, "--yes", four)
    assert console("restore", four).status == 4
    assert console.status(four)["ready"] == 0
    action = str(first["result"]["action_id"])
    console.done("restore", four, "--action", action, "--yes")
    assert console.drained(four) == ["a"]
    done = console.done("restore", four, "--yes", "--json").json
    assert (done["done"], done["result"]["done"]) == (3, 3)
    assert console.drained(four) == ["b", "c", "d"]
    assert console.done("restore", four, "--yes", "--json").json["result"]["done"] == 0


def test_errors_are_requeued_into_another_queue(
    console: Console, four: str, install: Install
) -> None:
    bad = install("claim")
    console.done("push", bad, "x")
    console.popped(bad, "--fail", "boom")
    assert console("requeue", bad, "--to", four, "--back", "--yes").status == 2
    console.done("requeue", bad, "--to", four, "--yes")
    assert console.drained(four) == ["a", "b", "c", "d", "x"]
    assert console.status(bad)["errors"] == 0


def test_code_changed_by_hand_is_reported_and_upgrade_replaces_it(
    console: Console, four: str
) -> None:
    execute(
        console.url,
        f'CREATE OR REPLACE FUNCTION public."{four}_push"(payload text) RETURNS bigint '
        "LANGUAGE sql AS 'SELECT 1::bigint'",
    )
    plan = console.done("upgrade", four, "--dry-run", "--json").json["plan"]
    assert plan["changed_by_hand"] is True
    assert f"{four}_push" in console("upgrade", four).text
    assert console("upgrade", four, "--yes", "another").status == 4
    console.done("upgrade", four, "--yes")
    console.done("push", four, "e")
    assert console.drained(four) == ["a", "b", "c", "d", "e"]


def test_end_session_ends_only_a_session_that_holds_rows(console: Console, four: str) -> None:
    assert "No session holds rows" in console.done("release", four).text
    with closing(connect(console.url)) as holder, connect(console.url) as other:
        holder.execute("BEGIN")
        holder.execute(f'SELECT * FROM "{four}_pop"()'.encode())
        pid = holder.info.backend_pid
        answer = console("release", four)
        assert answer.status == 4
        assert f"session {pid} " in answer.text
        assert f"end-session '{four}' {pid}" in answer.err
        assert console.status(four)["held_by"][0]["session"] == pid
        plan = console("end-session", four, str(pid), "--json")
        assert (plan.status, plan.json["plan"]["session"]) == (4, pid)
        assert console("end-session", four, str(other.info.backend_pid), "--yes").status == 4
        assert other.execute("SELECT 1").fetchone() == (1,)
        ended = console.done("end-session", four, str(pid), "--yes", "--json").json["result"]
        assert (ended["ended"], ended["freed"]) == (True, [four])
    assert console.drained(four) == ["a", "b", "c", "d"]
    assert console("end-session", four, str(pid), "--yes").status == 2


def test_upgrade_all_upgrades_every_queue_and_names_what_it_cannot(empty: Console) -> None:
    console, four, newer = empty, "four", "newer"
    for name, design in (("ring", "ring"), (four, "fifo"), (newer, "claim")):
        console.done("install", design, name)
    console.done("push", four, "-", "--lines", stdin=b"a\nb\nc\nd\n")
    with connect(console.url) as connection:
        connection.execute(f'DROP FUNCTION public."{four}_push_many"'.encode())
        connection.execute("UPDATE dbq.queue SET version = 99 WHERE queue_name = %s", [newer])
    assert console("upgrade").status == console("upgrade", four, "--all").status == 2
    planned = console("upgrade", "--all", "--json")
    assert (planned.status, planned.json["done"]) == (4, 0)
    needed = {one["queue"] for one in planned.json["queues"] if one["plan"]["needed"]}
    assert four in needed
    answer = console("upgrade", "--all", "--yes", "--json")
    assert (answer.status, newer in answer.json["problems"][0]) == (4, True)
    assert {one["queue"] for one in answer.json["queues"] if one["done"]} == needed
    console.done("push", four, "e")
    execute(console.url, "DELETE FROM dbq.queue WHERE queue_name = %s", [newer])
    again = console.done("upgrade", "--all", "--yes", "--json").json
    assert not any(one["done"] for one in again["queues"])
    unneeded = console.done("upgrade", "--all")
    assert "only the plan" not in unneeded.err


def test_the_limit_of_ready_messages_goes_with_rounds(console: Console, install: Install) -> None:
    console("archive", install("claim"), "--hot-above", "5").failed(
        2, "--hot-above goes with --every"
    )
