"""Service Broker, as far as `broker.sql` needs it: conversations, SEND, RECEIVE, END CONVERSATION.

Not modelled: deliveries that fail, activation, WAITFOR (RECEIVE), and that five rollbacks in a row
disable a queue. Rule: conversation.
"""
# ruff: noqa: N802 - methods are named as ScriptDom's classes

from functools import partial
from typing import Any

from tests.microsoft.server import ServerError
from tests.microsoft.trees import Node
from tests.microsoft.values import Steps, Values, column_of, last

END_DIALOG = "http://schemas.microsoft.com/SQL/ServiceBroker/EndDialog"
ENDPOINTS = "conversation_endpoints"
TABLES = {
    **dict.fromkeys(("orders", "orders_initiator"), ("queuing_order",)),
    **dict.fromkeys((ENDPOINTS, "transmission_queue"), ("conversation_handle",)),
}
"""The queues of both sides, and the views that the procedures read."""


class Broker(Values):
    """The statements of conversations. The handle of a conversation's other side is one higher."""

    def _BeginDialogStatement(self, node: Node) -> Steps:
        yield from ()
        handle = 2 * self._session.draw("ids")
        self._values[node["Handle"]["Name"]] = handle
        self._session.insert(ENDPOINTS, {"conversation_handle": handle, "state": "SO"})

    def _SendStatement(self, node: Node) -> Steps:
        (conversation,) = node["ConversationHandles"]
        handle = yield from self._value(conversation)
        body = yield from self._value(node["MessageBody"])
        yield from self._waiting(partial(self._session.lock, ENDPOINTS, (handle,), skips=False))
        if self._session.read(ENDPOINTS, (handle,), skips=False, dirty=False) is None:
            raise ServerError("The conversation handle is not found (8426).")
        yield
        self._deliver("orders", handle + 1, node["MessageTypeName"]["Value"], body)

    def _EndConversationStatement(self, node: Node) -> Steps:
        handle = yield from self._value(node["Conversation"])
        yield
        if handle % 2:  # the side that receives: the other one gets an answer
            self._deliver("orders_initiator", handle - 1, END_DIALOG, None)
        elif self._session.lock(ENDPOINTS, (handle,), skips=True):
            self._session.write(ENDPOINTS, (handle,), None)

    def _deliver(self, queue: str, handle: int, kind: str, body: Any) -> None:
        """The message is there when its transaction commits."""
        number = self._session.draw("messages")
        message = {
            "queuing_order": number,
            "message_sequence_number": number,
            "status": 1,
            "conversation_handle": handle,
            "message_type_name": kind,
            "message_body": body,
        }
        self._touches = True
        self._session.insert(queue, message)

    def _ReceiveStatement(self, node: Node) -> Steps:
        """Messages of the first conversation that nobody else receives from."""
        queue, session = last(node["Queue"]), self._session
        limit = yield from self._value(node["Top"])
        self._touches, taken = True, 0
        handle: int | None = None
        elements = node["SelectElements"]
        for key in session.all_keys(queue):
            message = session.read(queue, key, skips=True, dirty=False)
            if message is None or taken == limit:
                continue
            of = message["conversation_handle"]
            if handle is None and session.lock("conversation", (of,), skips=True):
                handle = of
                yield
            if handle != of or not session.lock(queue, key, skips=True):
                continue
            values = yield from self._each([one["Expression"] for one in elements], {"": message})
            if "Into" in node:
                columns = [column_of(one["Expression"]) for one in elements]
                row = dict(zip(columns, values, strict=True))
                self._tables[node["Into"]["Variable"]["Name"]].append(row)
            else:
                self._values |= {
                    one["Variable"]["Name"]: value
                    for one, value in zip(elements, values, strict=True)
                }
            session.write(queue, key, None)
            taken += 1
        self._rowcount = taken
