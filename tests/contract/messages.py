"""Payloads that name their sender and can be checked byte for byte when popped."""

import json

from console.actions.push import Payload

FILL = "  ü 😀 e\u0301 'quoted' \"twice\" \\ %s :name ; -- "


def message(kind: str, producer: int, number: int) -> Payload:
    """The one payload that `producer` sends as its `number`-th; at most 300 bytes as stored."""
    text = f"{producer}:{number}:" + FILL * (number % 3) + " " * (number % 2)
    if kind == "json":
        return json.dumps([producer, number, text, {"n": 12345678901234567890}], ensure_ascii=False)
    if kind == "bytes":
        return f"{producer}:{number}:".encode() + bytes((number * 7 + i) % 256 for i in range(64))
    return text


def sender(payload: Payload) -> tuple[int, int]:
    """Its producer, and its number."""
    if isinstance(payload, bytes):
        producer, number, _ = payload.split(b":", 2)
    elif payload.startswith("["):
        producer, number = json.loads(payload)[:2]
    else:
        producer, number, _ = payload.split(":", 2)  # type: ignore[assignment]
    return int(producer), int(number)


def intact(kind: str, payload: Payload) -> bool:
    """Whether it is exactly what was sent; for JSON, the same value."""
    sent = message(kind, *sender(payload))
    if kind == "json":
        return isinstance(payload, str) and json.loads(payload) == json.loads(sent)
    return payload == sent
