"""Manifests and files of runs that somebody else has written, or spoilt: refused, in words."""

import json
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from console.errors import ConsoleError
from console.pipeline import runs
from console.pipeline.archive import plan as planning
from console.pipeline.archive.plan import ArchivePlan, Range
from console.pipeline.lake import DamagedError, Lake
from tests.hostile import outcome, texts

NOW = datetime(2026, 3, 29, 12, tzinfo=UTC)
PLAN = ArchivePlan(
    *("p1", "prod", "public", "mail", "fifo", "text"),
    *("2026-03-29 12:00:00", "2026-03-29 12:00:00", "2026-03-22 12:00:00", ""),
    100,
    [Range(0, "archive", 0, 99, 100)],
)
ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts | st.just("../../../x"),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=3,
)


def put(lake: Lake, path: str, content: object) -> None:
    data = json.dumps(content).encode()
    with lake.writing(path) as file:
        file.write(data)


def changed(content: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Some of its values others, or none."""
    return {name: value for name, value in (content | changes).items() if value != "gone"}


@settings(max_examples=60)
@given(
    changes=st.dictionaries(
        st.sampled_from([*PLAN.as_json(), "more"]), ODD | st.just("gone"), min_size=1, max_size=2
    ),
    in_range=st.dictionaries(st.sampled_from([*asdict(PLAN.ranges[0]), "more"]), ODD, max_size=1),
)
def test_any_plan_is_that_plan_or_damaged(
    tmp_path_factory: pytest.TempPathFactory, changes: dict[str, Any], in_range: dict[str, Any]
) -> None:
    lake = Lake(tmp_path_factory.mktemp("lake"))
    content = PLAN.as_json()
    content["ranges"] = [content["ranges"][0] | in_range]
    put(lake, f"{PLAN.manifests}/plan.json", changed(content, changes))
    found = outcome(lambda: planning.read(lake, PLAN.manifests))
    if isinstance(found, ConsoleError):
        assert isinstance(found, DamagedError)
        assert found.next_step
        return
    assert found.manifests == PLAN.manifests
    assert found.rows >= 0 or in_range
    for part in found.ranges:
        lake.path(found.range_path(part.number))
        lake.path(found.data_path("2026-03-29", part.number))


@pytest.mark.parametrize("wrong", ["id", "connection", "schema", "queue"])
def test_a_plan_of_somewhere_else_is_not_this_one(lake: Lake, wrong: str) -> None:
    """Whoever may write manifests shall not say where files are written and removed."""
    content = PLAN.as_json() | {wrong: "../../../elsewhere"}
    put(lake, f"{PLAN.manifests}/plan.json", content)
    with pytest.raises(DamagedError, match="not a plan that this console can read"):
        planning.read(lake, PLAN.manifests)


@pytest.mark.parametrize("path", ["../x", "a/../../x", "a/..", ".."])
def test_no_path_leads_out_of_a_lake(lake: Lake, path: str) -> None:
    beside = Path(lake.location).parent / "x"
    beside.write_text("{}")
    for call in (lake.remove, lake.read_json, lake.exists, lake.size, lake.files, lake.names):
        with pytest.raises(DamagedError, match="outside it"):
            call(path)
    with pytest.raises(DamagedError, match="outside it"):
        lake.write_json(path, {})
    assert beside.read_text() == "{}"
    assert lake.path("a/..b/c..").endswith("/a/..b/c..")


def test_json_that_is_too_deep_is_damaged(lake: Lake) -> None:
    with lake.writing("a.json") as file:
        file.write(b"[" * 200_000)
    with pytest.raises(DamagedError, match="damaged"):
        lake.read_json("a.json")


RUN = {
    "format": 1,
    "verb": "archive",
    "began_at": NOW.isoformat(),
    "words": ["pipeline", "archive"],
    "status": 0,
    "result": {"done": True, "result": {"exported": 1, "bytes": 2}},
}
FIELDS = [name for name in runs.Run.__dataclass_fields__ if name not in {"id", "alive"}]


@settings(max_examples=100)
@given(st.dictionaries(st.sampled_from([*FIELDS, "more"]), ODD | st.just("gone"), max_size=3))
def test_any_file_of_a_run_is_a_run_or_counted(
    tmp_path_factory: pytest.TempPathFactory, changes: dict[str, Any]
) -> None:
    root = tmp_path_factory.mktemp("runs")
    (root / "20260329T120000.0Z-ab.json").write_text(json.dumps(changed(RUN, changes)))
    found = runs.read(root)
    assert len(found.runs) + found.unreadable == 1
    for run in found.runs:
        json.dumps(run.as_json(NOW))
        assert isinstance(run.moved, str)
        assert isinstance(run.running, bool)
