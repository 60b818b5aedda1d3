"""What the demo's messages say, and what goes wrong with them. All of it is made up."""

import json
import random
from collections.abc import Callable
from datetime import UTC, datetime

_PEOPLE = ("ana", "björn", "chidi", "dilara", "eve", "farid", "grace", "hiroshi", "İpek", "jürgen")
_GOODS = ("kettle", "desk lamp", "garden hose", "notebook", "headphones", "tent", "bicycle pump")
_PAGES = ("/", "/search", "/basket", "/checkout", "/account", "/help/returns")
_CITIES = ("Aarhus", "Bilbao", "Gdańsk", "Łódź", "Malmö", "Nantes", "Zürich")


def payload(queue: str, number: int, chance: random.Random) -> str:
    """The JSON text of a queue's message."""
    fields: dict[str, object] = {"id": number, "at": _now(chance)}
    return json.dumps(fields | _FIELDS[queue](chance), ensure_ascii=False)


def error_text(queue: str, message_id: str, chance: random.Random) -> str:
    """Why a message could not be processed: a few kinds a queue, each time with other details."""
    make = chance.choices(_ERRORS[queue], weights=(6, 3, 1))[0]
    return make(message_id, chance)


def _now(chance: random.Random) -> str:
    moment = datetime.now(UTC).replace(microsecond=chance.randrange(1_000_000))
    return moment.isoformat(timespec="milliseconds")


def _hex(chance: random.Random, digits: int) -> str:
    return f"{chance.getrandbits(4 * digits):0{digits}x}"


def _order(chance: random.Random) -> dict[str, object]:
    return {
        "customer": chance.choice(_PEOPLE),
        "item": chance.choice(_GOODS),
        "quantity": chance.randint(1, 5),
        "total": round(chance.uniform(4, 300), 2),
    }


def _mail(chance: random.Random) -> dict[str, object]:
    order = chance.randint(10_000, 99_999)
    return {
        "to": f"{chance.choice(_PEOPLE)}@example.com",
        "subject": f"Your order {order} is on its way",
        "template": chance.choice(("shipped", "welcome", "receipt")),
    }


_FIELDS: dict[str, Callable[[random.Random], dict[str, object]]] = {
    "ledger": lambda c: {
        "account": c.randint(4000, 4999),
        "amount": round(c.uniform(-500, 500), 2),
        "currency": c.choice(("EUR", "DKK", "PLN")),
    },
    "orders": _order,
    "clicks": lambda c: {
        "visitor": _hex(c, 12),
        "page": c.choice(_PAGES),
        "milliseconds": c.randint(40, 900),
    },
    "payments": lambda c: {
        "order": c.randint(10_000, 99_999),
        "amount": round(c.uniform(4, 300), 2),
        "method": c.choice(("card", "transfer", "wallet")),
    },
    "thumbnails": lambda c: {
        "image": f"s3://pictures/{_hex(c, 8)}.jpg",
        "width": c.choice((160, 320, 640)),
    },
    "reminders": lambda c: {
        "customer": c.choice(_PEOPLE),
        "what": c.choice(("basket", "renewal", "review")),
    },
    "mail": _mail,
    "invoices": lambda c: {
        "order": c.randint(10_000, 99_999),
        "customer": c.choice(_PEOPLE),
        "net": round(c.uniform(4, 300), 2),
        "vat_percent": c.choice((19, 23, 25)),
    },
    "shipments": lambda c: {
        "order": c.randint(10_000, 99_999),
        "city": c.choice(_CITIES),
        "grams": c.randint(80, 12_000),
    },
}

_ErrorMaker = Callable[[str, random.Random], str]

_ERRORS: dict[str, tuple[_ErrorMaker, _ErrorMaker, _ErrorMaker]] = {
    "mail": (
        lambda _, c: (
            f"SMTP 451 4.7.1 <{c.choice(_PEOPLE)}@example.com>: greylisted, try again after "
            f"{_now(c)} (session {_hex(c, 8)})"
        ),
        lambda message, c: f"timeout: message {message} not sent within {c.randint(3000, 3099)} ms",
        lambda _, c: (
            f"template error at {_now(c)}: KeyError 'first_name' in order {c.randint(1000, 9999)}"
        ),
    ),
    "invoices": (
        lambda message, c: (
            f"HTTP 503 from https://tax.example.com/v2/rates?invoice={message} after "
            f"{c.randint(5000, 5400)} ms (request {_hex(c, 16)})"
        ),
        lambda _, c: (
            'duplicate key value violates unique constraint "invoice_number_key"\n'
            f"DETAIL: Key (number)=({c.randint(200_000, 299_999)}) already exists."
        ),
        lambda message, c: (
            f"{_now(c)} invoice {message}: VAT id DE{c.randint(10**8, 10**9)} unknown"
        ),
    ),
    "shipments": (
        lambda _, c: (
            f"carrier refused parcel {c.randint(10**9, 10**10)}: no service to "
            f"{c.choice(_CITIES)} on {datetime.now(UTC):%Y-%m-%d}"
        ),
        lambda message, c: (
            f"deadline exceeded: label of shipment {message} took {c.uniform(30, 31):.2f} s"
        ),
        lambda _, c: (
            f"[Errno 111] connection to 10.0.{c.randint(0, 9)}.{c.randint(1, 254)}:9100 refused"
        ),
    ),
}
