"""Which messages an action is for: walked oldest first, by keys, up to the action's cut-off."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime

from console.engines import Database, Session
from console.monitor.filters import Filters
from console.monitor.message import Message, Wanted
from console.monitor.messages import check, doing
from console.monitor.search import Search
from console.monitor.walked import Source


class Choice:
    """The messages of some states that match, a few at a time. In the hands of one thread."""

    def __init__(
        self,
        database: Database,
        session: Session,
        source: Source,
        filters: Filters,
        states: Sequence[str],
        cutoff: datetime,
    ) -> None:
        """UsageError for filters that can mean nothing in one of the states."""
        self._database = database
        self._session = session
        self._source = source
        bare = replace(filters, limit=None, keep_newest=None)
        self._left = [replace(bare, state=state) for state in states]
        for wanted in self._left:
            check(source.queue, wanted)
        self._cutoff = cutoff
        self._after: str | None = None
        self._met: set[str | None] = set()

    def next(self, most: int) -> list[Message]:
        """The next ones, at most so many; none: that was all."""
        while self._left:
            wanted = Wanted(self._left[0], most, oldest_first=True, moment=self._cutoff)
            search = Search(self._source, wanted, self._after)
            self._run(search)
            found = search.found
            if search.next is not None:
                self._after = search.next.text
            elif search.complete:
                self._next_state()
            else:
                # Nothing gives an order to go on in: from the beginning, as long as others come.
                found = [message for message in found if message.id not in self._met]
                self._met.update(message.id for message in found)
                if not found:
                    self._next_state()
            if found:
                return found
        return []

    def _next_state(self) -> None:
        self._left.pop(0)
        self._after = None
        self._met.clear()

    def _run(self, search: Search) -> None:
        while not search.ended:
            with self._session.transaction(doing(self._source.queue)) as connection:
                self._source.begin(connection, self._database)
                search.step(connection)

    def all(self, at_once: int) -> Iterator[list[Message]]:
        """Everything, some at a time."""
        while found := self.next(at_once):
            yield found
