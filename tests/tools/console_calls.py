"""Runs calls of the console that PYTHONPATH finds first: JSON lines on stdin, results on stdout.

Imports nothing from the suite, as the console that is called may be of another revision.
"""

import io
import json
import os
import sys
from contextlib import redirect_stderr, redirect_stdout

from console.cli import main


def call(words: list[str], stdin_text: str, url: str) -> dict[str, object]:
    """Call `dbq-console` in this process."""
    out = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)
    err = io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace", write_through=True)
    os.environ["DBQ_URL"] = url
    sys.argv = ["dbq-console", *words]
    sys.stdin = io.TextIOWrapper(io.BytesIO(stdin_text.encode()), "utf-8")
    status: object = 0
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            status = end.code
    texts = [stream.detach().getvalue().decode() for stream in (out, err)]
    return {"status": status, "out": texts[0], "err": texts[1]}


if __name__ == "__main__":
    results = sys.stdout
    for line in sys.stdin:
        print(json.dumps(call(**json.loads(line))), file=results, flush=True)
