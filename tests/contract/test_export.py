"""Export: each matching message is in the file once, however often it was interrupted."""

import csv
import io
import json
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from console.actions import export as exporting
from console.actions.export import Exported, ExportRequest, export
from console.errors import RefusedError, UsageError
from console.monitor.filters import parse
from tests.contract.client import Client
from tests.contract.conftest import Use
from tests.contract.filled import can_be_paged, fill, read_messages
from tests.contract.message_actions import entries
from tests.contract.variants import BEHAVIOURS, DEFAULTS, default, long_except

ONE_OF_EACH_FLOW = [v for v in DEFAULTS if v.design.name in {"ring", "fifo", "status"}]
"""An export reads the pages of `messages`, which are tested with every design."""


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "_PAGE", 3)


def request(client: Client, path: Path, *words: str, payload: bool = False) -> ExportRequest:
    size = exporting.PAYLOAD_BYTES if payload else None
    return ExportRequest(client.queue, parse(words), path, size, rate=1e6)


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]]


def interrupt_export(client: Client, export_request: ExportRequest, pages: int) -> None:
    """Interrupt an export after this number of complete pages."""
    left = iter(range(pages))

    def on_page(_: int) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export(client.database, export_request, on_progress=on_page)


def test_a_page_holds_as_many_messages_as_their_payloads_leave_room_for(
    use: Use, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "_PAGE_BYTES", 1_000)
    client = use(default("fifo"))
    client.push_many([text * "x" for text in (10, 10, 10, 10, 400, 400, 400, 900, 5_000, 10)])
    counts: list[int] = []
    some = replace(request(client, tmp_path / "all.jsonl", payload=True), payload_bytes=900)

    export(client.database, some, on_progress=counts.append)

    assert counts == [3, 6, 7, 8, 10]
    assert [len(row["payload"]) for row in rows(some.path)][-3:] == [900, 900, 10]


@pytest.mark.parametrize("variant", long_except(ONE_OF_EACH_FLOW, BEHAVIOURS), ids=str)
def test_an_export_has_all_messages_as_they_were_when_it_began(
    client: Client, tmp_path: Path
) -> None:
    fill(client)
    if not can_be_paged(client):
        pytest.skip("a heap has no order in which pages could follow each other here")
    page = read_messages(client, limit=1000, payload_bytes=exporting.PAYLOAD_BYTES)
    export_request = request(client, tmp_path / "all.jsonl", payload=True)
    interrupt_export(client, export_request, 1)
    partial = tmp_path / "all.jsonl.partial"
    with partial.open("ab") as file:
        file.write(b'{"a page that is not wh')
    client.push_many(client.payloads(90, 91))

    done = export(client.database, export_request)

    found = rows(export_request.path)
    assert (done.resumed, done.progress.messages) == (6, len(found))
    assert sorted(one["id"] for one in found) == sorted(
        str(message.id) for message in page.messages
    )
    same = {message.id: message.as_json(with_payload=True) for message in page.messages}
    for one in found:
        was = same[one["id"]]
        assert one | {"age_seconds": None} == was | {"age_seconds": None}
    assert list(tmp_path.iterdir()) == [export_request.path]
    assert stat.S_IMODE(export_request.path.stat().st_mode) == 0o600


def test_an_export_never_overwrites_a_file(use: Use, tmp_path: Path) -> None:
    client = use(default("naive"))
    client.push_many(client.payloads(*range(9)))
    export_request = request(client, tmp_path / "x.jsonl", "older=0s")
    (tmp_path / "x.jsonl").write_text("mine")
    with pytest.raises(UsageError, match="already exists"):
        export(client.database, export_request)
    assert export_request.path.read_text() == "mine"
    export_request.path.unlink()
    with pytest.raises(UsageError, match="No export can be written"):
        export(client.database, replace(export_request, path=tmp_path / "x.txt"))

    interrupt_export(client, export_request, 1)
    with pytest.raises(UsageError, match="belongs to another export"):
        export(client.database, replace(export_request, filters=parse(["older=1s"])))
    with pytest.raises(UsageError, match="belongs to another export"):
        export(client.database, replace(export_request, payload_bytes=10))

    def on_page(_: int) -> None:
        with pytest.raises(RefusedError, match="Another export is writing"):
            export(client.database, export_request)

    assert export(client.database, export_request, on_progress=on_page).progress.messages == 9


def test_no_csv_cell_is_a_formula_and_exports_of_payloads_are_audited(
    use: Use, tmp_path: Path
) -> None:
    client = use(default("fifo"))
    payloads = ["=1+1", "+1", "-1", "@x", "\tx", 'a "b",\nc', "plain", "x" * 30]
    client.push_many(payloads)
    export_request = replace(request(client, tmp_path / "x.csv", payload=True), payload_bytes=20)
    done: Exported = export(client.database, export_request)
    text = export_request.path.read_bytes().decode()
    found = list(csv.DictReader(io.StringIO(text, newline="")))
    assert [one["payload"] for one in found] == [
        *("'=1+1", "'+1", "'-1", "'@x", "'\tx"),
        *('a "b",\nc', "plain", "x" * 20),
    ]
    assert [one["payload_cut"] for one in found] == ["False"] * 7 + ["True"]
    assert done.progress.payloads_cut == 1
    (entry,) = entries(client, "export")
    assert entry.outcome == "done"
    assert entry.detail == f"8 messages with payloads into {export_request.path}"
    assert entry.cutoff is not None
    export(client.database, request(client, tmp_path / "y.jsonl"))
    assert entries(client, "export") == [entry]
    assert "payload" not in rows(tmp_path / "y.jsonl")[0]


def test_an_export_of_several_ids_can_be_continued(use: Use, tmp_path: Path) -> None:
    client = use(default("status"))
    ids = [str(one) for one in client.push_many(client.payloads(*range(5)))]
    export_request = request(client, tmp_path / "x.jsonl", f"id={ids[3]}", f"id={ids[1]}")
    interrupt_export(client, export_request, 0)
    assert export(client.database, export_request).resumed == 1
    assert [row["id"] for row in rows(export_request.path)] == [ids[3], ids[1]]
