"""The console without a feature: all that is left can be imported, is listed and works.

python -m tests.contract.adding.use_without FEATURE COMMAND,... URL
"""

import importlib
import pkgutil
import sys

import console
from console.cli.verbs import cli
from console.features import NAMES, features, missing
from tests.cli.calls import Console, call


def modules() -> list[str]:
    """All that do not belong to a feature that is off."""
    off = tuple(f"console.features.{name}." for name in NAMES if missing(name))
    names = (module.name for module in pkgutil.walk_packages(console.__path__, "console."))
    return [name for name in names if not name.startswith(off) and not name.endswith("__main__")]


if __name__ == "__main__":
    taken, gone, url = sys.argv[1:]
    assert taken not in features()
    for name in modules():
        importlib.import_module(name)
    assert not [name for name in sys.modules if name.startswith(f"console.features.{taken}.")]
    listed = {*cli.commands}
    for name in gone.split(","):
        assert name not in listed
        assert call(name).status == 2
    for name in listed:
        assert call(name, "--help").status == 0, name
    assert call("help").status == 0
    of_off = [name for name in features() if missing(name)]
    for name in of_off:
        assert taken in missing(name)
    here = Console(url)
    here.done("install", "ring", "orders")
    here.done("push", "orders", "a")
    assert here.done("pop", "orders").text == "a\n"
    here.done("status")
    here.done("messages", "orders")
    assert here("doctor", "orders", "--idle-for", "0s").status in {0, 1}
