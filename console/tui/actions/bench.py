"""The bench as an operator is offered it: its form, and the command line's twin of that."""

from collections.abc import Mapping

from console.bench.message import SMALLEST
from console.tui.actions.fields import Field, Form, Kind

_MOST_CLIENTS = 1000

FORM = Form(
    "bench",
    "how fast each design is here, every message checked",
    (
        Field("designs", Kind.TEXT, "all, or some: ring,fifo:order=strict", default="all"),
        Field("peers", Kind.TEXT, "all, none, or procrastinate,pgqueuer", default="none"),
        Field("producers", Kind.NUMBER, "connections that push", most=_MOST_CLIENTS, default="16"),
        Field("consumers", Kind.NUMBER, "connections that pop", most=_MOST_CLIENTS, default="16"),
        Field("batch", Kind.TEXT, "messages a call; or 1,10,100", default="1"),
        Field("payload", Kind.NUMBER, "bytes of a message", least=SMALLEST, default="300"),
        Field("seconds", Kind.NUMBER, "of a round", default="10"),
        Field("warmup", Kind.NUMBER, "seconds before each", least=0, default="2"),
        Field("rounds", Kind.NUMBER, "of each, in turn", most=1000, default="3"),
        Field("ring-size", Kind.TEXT, "slots of a ring; several are compared"),
        Field("held-xmin", Kind.FLAG, "keep one old transaction open: who slows down?"),
    ),
    confirmed=False,
)


def words(said: Mapping[str, str]) -> list[str]:
    """The options of the command line's twin."""
    found = []
    for field in FORM.fields:
        text = said.get(field.name, "").strip()
        if field.kind is Kind.FLAG:
            found += [f"--{field.name}"] if text else []
        elif text and text != field.default:
            found.append(f"--{field.name}={text}")
    return found
