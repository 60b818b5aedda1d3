"""State files of this user's that no console wrote."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from console.features.lake import runs
from console.monitor import known_queues
from console.monitor.message import PastAttempt

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["queues", "format", "words", "x"]), inner, max_size=3)
    ),
    max_leaves=6,
)
DEEP = "[" * 100_000


@pytest.mark.parametrize(
    "text", [DEEP, '{"queues": 5}', '{"queues": [[1], "a"]}', "\udcff", ""], ids=range(5)
)
def test_an_odd_file_of_known_queues_names_none(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_queues, "folder", lambda: tmp_path)
    (tmp_path / "x.json").write_text(text, errors="surrogateescape")
    assert known_queues.names() in ([], ["a"])


@given(JSON)
@example({"format": 1})
def test_an_odd_record_of_a_run_is_counted_as_not_readable(
    tmp_path_factory: pytest.TempPathFactory, document: Any
) -> None:
    folder = tmp_path_factory.mktemp("runs")
    (folder / "x.json").write_text(json.dumps(document))
    (folder / "deep.json").write_text(DEEP)
    assert len(runs.read(folder).runs) == 0


ANY_TEXT = st.none() | st.text() | st.sampled_from(["0001-01-01T00:00:00+14:00", "1" * 5000])


@given(ANY_TEXT, ANY_TEXT)
def test_a_past_attempt_of_any_texts_can_be_shown(at: str | None, attempts: str | None) -> None:
    assert PastAttempt.of(at, None, attempts, None).as_json()
