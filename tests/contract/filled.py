"""Queues with messages in every state, and ways to read them."""

from dataclasses import dataclass
from typing import Any

from console.designs import Order
from console.monitor.filters import parse
from console.monitor.message import Message
from console.monitor.messages import Page, read_page
from tests.contract.client import Client

ERROR = "boom at 10:20:30 for order 17\nsecond line"


@dataclass(frozen=True)
class Filled:
    """A queue with messages in every state that its design has."""

    client: Client
    ids: dict[str, list[str]]
    """State -> the ids of its messages, in the order in which they entered it."""

    @property
    def all(self) -> list[str]:
        return [id_ for ids in self.ids.values() for id_ in ids]


def fill(client: Client, count: int = 12) -> Filled:
    """Push some; where claims exist, pop, fail and complete some."""
    pushed = client.push_many(client.payloads(*range(count)))
    assert None not in pushed
    ids = {"ready": [str(id_) for id_ in pushed]}
    queue = client.queue
    if queue.finishes:
        popped = client.pop_many(7, "worker-1")
        for taken in popped[:2]:
            assert client.fail(taken, ERROR)
        for taken in popped[2:4]:
            assert client.complete(taken)
        taken_ids = [taken.id for taken in popped]
        ids = {
            "ready": [id_ for id_ in ids["ready"] if id_ not in taken_ids],
            "claimed": taken_ids[4:],
            "error": taken_ids[:2],
        }
        if "done" in queue.states:
            ids["done"] = taken_ids[2:4]
    return Filled(client, ids)


def read_messages(client: Client, *words: str, **options: Any) -> Page:
    return read_page(client.database, client.queue, parse(words), **options)


def ids_of(page: Page) -> list[str]:
    return [str(message.id) for message in page.messages]


def all_pages(client: Client, *words: str, limit: int, **options: Any) -> list[Message]:
    """Everything, page by page, each from the key where the previous one ended."""
    messages: list[Message] = []
    after = None
    for _ in range(1000):
        page = read_messages(client, *words, limit=limit, after=after, **options)
        messages += page.messages
        assert len(page.messages) <= limit
        if page.next is None:
            return messages
        after = page.next.text
    raise AssertionError("pages never end")


def can_be_paged(client: Client) -> bool:
    """Whether the list can be paged: a heap has row positions on some engines only."""
    heap = client.queue.design.order is Order.NONE
    return not heap or read_messages(client, limit=1).next is not None
