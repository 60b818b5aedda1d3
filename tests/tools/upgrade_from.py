"""Upgrades queues that an earlier revision installed and used, and counts their messages.

    python -m tests.tools.upgrade_from REVISION

The earlier revision installs a queue of every variant that it has, with messages in every state
that its verbs reach. This one says what it thinks of them, upgrades all, and takes every message.
Exit 1: something was lost, doubled, refused, or still differs.
"""

import json
import sys
from collections.abc import Iterator

from sqlalchemy import make_url

from tests.contract.variants import ALL, Variant, on
from tests.servers import execute, value
from tests.tools.json_before import Console, both_revisions

MESSAGES = 9
STATES = ("ready", "scheduled", "claimed", "errors", "done")
Found = dict[str, dict[str, object]]


def main() -> int:
    with both_revisions(__doc__) as (server, old, new), old.open(), new.open():
        url = server.create_database("old")
        url = make_url(url).set(drivername="postgresql+psycopg").render_as_string(False)
        names = list(installed_by(old, url))
        before = figures(old, url)
        print(f"{len(names)} queues installed before, states {totals(before)}")
        return upgraded(new, url, before)


def installed_by(console: Console, url: str) -> Iterator[str]:
    """Queues with messages that were pushed, popped, failed, completed and purged."""
    for number, variant in enumerate(on("postgresql", ALL)):
        name = f"q{number}"
        options = [
            w for key, value in variant.given.items() for w in ("--option", f"{key}={value}")
        ]
        if console(["install", variant.design.name, name, *options], url).status:
            continue  # it has no such option yet
        use(console, url, name, variant)
        yield name


def use(console: Console, url: str, name: str, variant: Variant) -> None:
    lines = "".join(f"{json.dumps({'n': n})}\n" for n in range(MESSAGES))
    pushed = console(["push", name, "-", "--lines"], url, lines)
    assert pushed.status == 0, (variant, pushed)
    as_one = (
        ["--subscriber", variant.given["subscribers"].split(",")[0]]
        if ("subscribers" in variant.given)
        else []
    )
    console(["pop", name, *as_one], url)
    for words in (["--complete"], ["--fail", "no such mailbox"], []):
        console(["pop", name, *words, *as_one], url)
    console(["purge", name, "--filter", "limit=1", "--yes"], url)


def figures(console: Console, url: str) -> Found:
    answer = json.loads(console(["status", "--json"], url).out)
    return {one["queue"]: one for one in answer["queues"]}


def totals(found: Found) -> dict[str, int]:
    return {state: sum(int(one.get(state) or 0) for one in found.values()) for state in STATES}  # type: ignore[call-overload]


def rows_of(url: str) -> dict[str, object]:
    """A sum of the rows of every table, none of which an upgrade may change."""
    names = execute(
        url,
        "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables WHERE schemaname = 'public'",
    )
    content = "SELECT coalesce(sum(hashtext(r::text)::bigint), 0) + count(*) FROM {} AS r"
    return {name: value(url, content.format(name)) for (name,) in names}


def upgraded(console: Console, url: str, before: Found) -> int:
    wrong = []
    tables = rows_of(url)
    doctor = console(["doctor", "--idle-for", "0s"], url)
    print("doctor before:", doctor.out.strip().splitlines()[-1], f"(exit {doctor.status})")
    planned = json.loads(console(["upgrade", "--all", "--dry-run", "--json"], url).out)
    plans = [one["plan"] for one in planned["queues"]]
    print(
        f"upgrade --all --dry-run: {sum(plan['needed'] for plan in plans)} of {len(plans)} need it"
    )
    wrong += [
        f"{plan['queue']} is said to be changed by hand"
        for plan in plans
        if plan["changed_by_hand"]
    ]
    done = console(["upgrade", "--all", "--yes", "--json"], url)
    problems = json.loads(done.out)["problems"]
    print(f"upgrade --all --yes: exit {done.status}, problems {problems}")
    wrong += problems
    again = json.loads(console(["upgrade", "--all", "--dry-run", "--json"], url).out)
    wrong += [f"{one['queue']} still differs" for one in again["queues"] if one["plan"]["needed"]]
    now = rows_of(url)
    wrong += [f"{name} has changed" for name in tables if tables[name] != now.get(name)]
    after = figures(console, url)
    wrong += [
        f"{name}: {state} was {one.get(state)}, is {after[name].get(state)}"
        for name, one in before.items()
        for state in STATES
        if one.get(state) != after[name].get(state)
    ]
    for name in before:
        console(["push", name, json.dumps({"n": MESSAGES})], url)
        if console(["pop", name], url).status not in {0, 2}:
            wrong.append(f"{name}: nothing could be popped")
    print(f"states after {totals(after)}; {len(wrong)} wrong")
    print("\n".join(wrong))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
