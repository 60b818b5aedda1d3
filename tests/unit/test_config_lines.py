"""Where each value of a TOML file stands."""

import tomllib
from collections.abc import Mapping
from typing import Any

import pytest

from console.config.file_reader import lines

TEXT = '''\
# a comment with = and [brackets]
plain = "x"
multi = """
[not.a.table]
not = "a key"
"""

[profiles.a]   # a comment
url = 'y'
list = [
  "# no comment", # one
  "]",
]
limits = { warning = 1, critical = 2 }
limits2.warning = 3
["profiles"."b c".queues."d.e"]
"quoted \\" key" = 1
[profiles]
f.g = 1
[[rows]]
x = 1
'''
EXPECTED = {
    ("plain",): 2,
    ("multi",): 3,
    ("profiles",): 8,
    ("profiles", "a"): 8,
    ("profiles", "a", "url"): 9,
    ("profiles", "a", "list"): 10,
    ("profiles", "a", "limits"): 14,
    ("profiles", "a", "limits", "warning"): 14,
    ("profiles", "a", "limits", "critical"): 14,
    ("profiles", "a", "limits2"): 15,
    ("profiles", "a", "limits2", "warning"): 15,
    ("profiles", "b c"): 16,
    ("profiles", "b c", "queues"): 16,
    ("profiles", "b c", "queues", "d.e"): 16,
    ("profiles", "b c", "queues", "d.e", 'quoted " key'): 17,
    ("profiles", "f"): 19,
    ("profiles", "f", "g"): 19,
    ("rows",): 20,
    ("rows", "x"): 21,
}


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_every_value_has_the_line_on_which_it_begins(newline: str) -> None:
    text = TEXT.replace("\n", newline)
    assert lines(text) == EXPECTED
    known = set(lines(text))
    assert {path for path in _paths(tomllib.loads(text)) if path[:1] != ("rows",)} <= known


def _paths(table: Mapping[str, Any], above: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
    found = set()
    for name, value in table.items():
        found.add((*above, name))
        if isinstance(value, dict):
            found |= _paths(value, (*above, name))
    return found


def test_nothing_has_no_lines() -> None:
    assert lines("") == lines("\n# x\n\n") == {}


def test_a_last_line_without_its_end() -> None:
    assert lines("a = 1\nb = 2") == {("a",): 1, ("b",): 2}
