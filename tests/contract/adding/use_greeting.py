"""The feature `greeting`: its command, its page, its tables, its tab and what it runs beside a
recorder.

python -m tests.contract.adding.use_greeting URL FOLDER
"""

import asyncio
import sys
from importlib import import_module
from pathlib import Path

from tests.cli.calls import Console, call
from tests.contract.adding.recorded import configure, record
from tests.tui.feeds import queue
from tests.tui.opened import opened

GREETING = '[greetings.anna]\nwords = "sleep well"\n'


async def press_it() -> None:
    """Its tab, by its name."""
    async with opened(size=(160, 48)) as console:
        console.feed.give(queue("mail"))
        await console.press("colon", *"greetings mail", "enter")
        await console.until(lambda: "good night, mail" in console.picture)
        assert "9 Greetings" in console.picture


if __name__ == "__main__":
    asyncio.run(press_it())
    assert "  greet          Greet whoever is on call.\n" in call("--help").text
    assert call("greet").text == "good night\n"
    assert call("greet", "--json").json == {"greeting": "good night"}
    assert call("help", "greetings").text.startswith("# Greetings")

    url, folder = sys.argv[1], Path(sys.argv[2])
    Console(url).done("install", "fifo", "orders")
    assert call("config", "show", "--example").text.count("[greetings.anna]") == 1
    environment = configure(folder, url, GREETING)
    valid = call("config", "validate", environment=environment).text
    assert "valid; 1 profile, 1 way of greetings" in valid
    shown = call("config", "show", "--json", environment=environment).json
    assert shown["greetings"]["anna"]["words"]["value"] == "sleep well"
    examined = import_module("console.features.greeting.recorder").EXAMINED
    recorded = record(folder, environment, examined.is_set)
    assert "sleep well, anna" in recorded.err
    assert "good morning, after 15 seconds at most" in recorded.err
    for mistake, text in (
        ("[greetings.anna]\nword = 1\n", 'greetings.anna.word is not a known key; did you mean "w'),
        ("[greetings.anna]\n", "greetings.anna needs words"),
        ("[greeting.anna]\n", 'greeting is not a known key; did you mean "greetings"?'),
    ):
        assert text in call("config", "validate", environment=configure(folder, url, mistake)).err
