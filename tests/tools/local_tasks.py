"""The tasks of pipeline jobs in this process, without Spark."""

from collections.abc import Sequence
from typing import Any

from console.features.lake.progress import StageProgress, no_progress
from console.features.lake.spark import Item, Work


class LocalTasks:
    """Runs tasks one after the other in this process, until the first error."""

    def run(
        self,
        work: Work,
        items: Sequence[Item],
        on_progress: StageProgress = no_progress,
        *,
        at_once: int | None = None,
    ) -> list[dict[str, Any]]:
        del at_once
        results: list[dict[str, Any]] = []
        rows = size = 0
        for item in items:
            result = work(item)
            rows, size = rows + int(result.get("rows", 0)), size + int(result.get("bytes", 0))
            results.append(result)
            on_progress(done=len(results), of=len(items), rows=rows, size=size)
        return results
