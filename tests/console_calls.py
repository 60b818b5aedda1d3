"""Calls of whatever console PYTHONPATH finds first: a line of JSON each, on stdin; so the answers.

Imports nothing of the suite, which belongs to another revision than the console that is called.
"""

import io
import json
import os
import sys
from contextlib import redirect_stderr, redirect_stdout

from console.cli import main


def answer(words: list[str], given: str, url: str) -> dict[str, object]:
    """Call `dbq-console` in this process."""
    out = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)
    err = io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace", write_through=True)
    os.environ["DBQ_URL"] = url
    sys.argv = ["dbq-console", *words]
    sys.stdin = io.TextIOWrapper(io.BytesIO(given.encode()), "utf-8")
    status: object = 0
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            status = end.code
    texts = [stream.detach().getvalue().decode() for stream in (out, err)]
    return {"status": status, "out": texts[0], "err": texts[1]}


if __name__ == "__main__":
    answers = sys.stdout
    for line in sys.stdin:
        print(json.dumps(answer(**json.loads(line))), file=answers, flush=True)
