"""The tab Stuck: claims with their owners, sessions that hold rows."""

from console.errors import RefusedError
from console.monitor.activity import Lock, Session
from console.monitor.owners import Claim, Claims, Evidence
from console.tui.tabs.stuck import QueueHolders, StuckTab
from console.tui.text import TextView
from tests.servers import connect
from tests.tui.acting import database_at, make
from tests.tui.alone import conn
from tests.tui.one_tab import KEY, Shown, one_tab

OURS = "pid=4711 start=x consumer="
GONE = Claim("1", 900.0, f"{OURS}etl\x1b", 3, "pid=4711 start=x", False, "etl\x1b", Evidence.GONE)
BOUND = Claim("2", 600.0, "pid=1 start=y bound", 1, "pid=1 start=y", True, None, Evidence.GONE)
ALIVE = Claim("3", 400.0, f"{OURS}w", 1, "pid=9 start=z", False, "w", Evidence.ALIVE)
YOUNG = Claim("4", 3.0, "somebody", None)
HOLDER = Session(
    key=815,
    kind="client backend",
    user="ann",
    application="psql",
    state="idle in transaction",
    state_seconds=2_472.0,
    transaction_seconds=2_472.0,
    query="SELECT ? FROM billing_pop()",
    locks=(Lock("public", "mail", "mail", "relation", "RowExclusiveLock", granted=True),),
)
PREPARED = Session(key="[b]forgotten", kind="prepared transaction", transaction_seconds=90.0)


def head(shown: Shown[StuckTab]) -> str:
    return shown.tab.query_one("#stuck-head", TextView).plain_text


def detail(shown: Shown[StuckTab]) -> str:
    return shown.tab.query_one("#stuck-detail", TextView).plain_text


async def test_claims_with_the_evidence_about_their_owners() -> None:
    async with one_tab(StuckTab, connections=[conn()]) as shown:
        shown.tab.show_error(RefusedError("Could not look."))
        shown.tab.show_result(QueueHolders(Claims((GONE, BOUND, ALIVE, YOUNG), more=True), None))
        await shown.pilot.pause()
        assert "4 claims and more   3 stuck over 5 min: owner 2 gone, 1 alive" in head(shown)
        for words in ("15 min", "gone", "alive", "unknown", "etl␛", "somebody"):
            assert words in shown.picture
        assert "The session that claimed it has ended" in detail(shown)
        await shown.press("j")
        assert "so has the claim" in detail(shown)
        await shown.press("x", "x", "a", "escape", "a", "f")
        assert shown.navigator.went == [
            ("actions", KEY, "id=2", "id=3"),
            ("actions", KEY, "id=4"),
            ("release", KEY),
        ]


async def test_of_a_library_what_is_copied_is_what_is_shown() -> None:
    async with one_tab(StuckTab, connections=[conn()]) as shown:
        shown.tab.show_result(QueueHolders(Claims((GONE,), more=False), None, library="River"))
        await shown.press("y")
        assert "Its worker is gone" in detail(shown)
        assert shown.app.clipboard == detail(shown)


async def test_sessions_that_hold_rows_can_be_ended() -> None:
    async with one_tab(StuckTab, connections=[conn()], size=(160, 48)) as shown:
        shown.tab.show_result(QueueHolders(None, (HOLDER, PREPARED)))
        await shown.pilot.pause()
        assert "2 sessions hold rows" in head(shown)
        for words in ("session 815", "41 min 12 s", "psql, ann", "idle in transaction"):
            assert words in shown.picture
        assert "prepared transaction [b]forgotten" in shown.picture
        assert "last: SELECT ? FROM billing_pop()" in detail(shown)
        await shown.press("a", "j", "a")
        assert shown.navigator.went == [
            ("end-session", KEY, ("session", "815")),
            ("end-session", KEY, ("session", "[b]forgotten")),
        ]


async def test_the_cursor_stays_with_its_claim() -> None:
    async with one_tab(StuckTab, connections=[conn()]) as shown:
        shown.tab.show_result(QueueHolders(Claims((GONE, BOUND, ALIVE), more=False), None))
        await shown.press("j", "j")
        shown.tab.show_result(QueueHolders(Claims((BOUND, ALIVE, YOUNG), more=False), ()))
        await shown.press("a")
        shown.tab.show_result(QueueHolders(Claims((BOUND, YOUNG), more=False), ()))
        assert shown.tab.table.cells("claim 3")["owner"].text == "left"
        await shown.press("a")
        assert shown.navigator.went == [("actions", KEY, "id=3")] * 2


async def test_nothing_is_said_in_words() -> None:
    async with one_tab(StuckTab, connections=[conn()]) as shown:
        shown.tab.show_result(QueueHolders(Claims((), more=False), ()))
        await shown.press("a", "y")
        assert "No claims." in head(shown)
        assert "No session holds rows." in head(shown)
        shown.tab.show_result(QueueHolders(None, None))
        assert "Nothing can be stuck in this design." in head(shown)
        assert shown.navigator.went == []


async def test_on_a_server(database_url: str) -> None:
    with database_at(database_url) as database:
        make(database, "mail", "claim", {})
        make(database, "letters", "fifo", {})
        here = conn().__class__("prod", database)
        async with one_tab(StuckTab, connections=[here]) as shown:
            shown.tab.poll()
            await shown.until(lambda: shown.tab.result is not None)
            assert "3 claims" in head(shown)
            assert {
                row["who"].text for row in map(shown.tab.table.cells, shown.tab.table.keys)
            } == {"tester"}
        with connect(database_url) as holder:
            holder.execute("BEGIN")
            holder.execute("SELECT * FROM letters_pop()")
            async with one_tab(
                StuckTab, key=("prod", "public", "letters"), connections=[here]
            ) as shown:
                shown.tab.poll()
                await shown.until(lambda: shown.tab.result is not None)
                assert "1 session holds rows" in head(shown)
                await shown.press("a")
                pid = str(holder.info.backend_pid)
                assert shown.navigator.went[0][2] == ("session", pid)
