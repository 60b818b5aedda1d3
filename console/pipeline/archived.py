"""What a lake has of a queue's archive, for those who read it: files of plans that are done."""

from dataclasses import dataclass

from console.errors import RefusedError, UsageError
from console.pipeline.archive import plan as planning
from console.pipeline.lake import MANIFESTS, Lake, connection_of, queue_of


@dataclass(frozen=True)
class Archived:
    """A queue's archive in a lake."""

    connection: str
    schema: str
    queue: str
    files: dict[str, tuple[str, ...]]
    """Paths in the lake, by the kind of their payloads."""
    unfinished: int
    """Plans that are not done: their rows may be in the database still, and are left out."""


def archived(lake: Lake, connection: str | None, schema: str | None, queue: str) -> Archived:
    """The one queue of that name. UsageError where there is none, or there are several."""
    found = [one for one in _queues(lake, connection) if one[2] == queue]
    if schema is not None:
        found = [one for one in found if one[1] == schema]
    if not found:
        raise UsageError(
            f"The lake {lake.place} has no archive of {queue!r}.",
            next_step=f"It gets there by: dbq-console pipeline archive {queue}",
        )
    if len(found) > 1:
        places = ", ".join(f"{one[1]}.{one[2]} of {one[0]}" for one in found)
        raise UsageError(
            f"The lake {lake.place} has several archives of {queue!r}.",
            why=f"They are: {places}.",
            next_step="Say which with --schema, and with --from its connection.",
        )
    return _archived(lake, *found[0])


def _queues(lake: Lake, connection: str | None) -> list[tuple[str, str, str]]:
    """Connection, schema and name of every queue that has plans."""
    root = f"{MANIFESTS}/archive"
    found = []
    for part in lake.names(root):
        of = connection_of(part)
        if connection is None or of == connection:
            found += [(of, *queue_of(name)) for name in lake.names(f"{root}/{part}")]
    return found


def _archived(lake: Lake, connection: str, schema: str, queue: str) -> Archived:
    folder = planning.manifests_folder(connection, schema, queue)
    files = lake.data_files(planning.data_folder(connection, schema, queue))
    by_kind: dict[str, tuple[str, ...]] = {}
    unfinished = 0
    for name in lake.names(folder):
        if not lake.exists(f"{folder}/{name}/plan.json"):
            continue
        if not lake.exists(f"{folder}/{name}/done.json"):
            unfinished += 1
            continue
        plan = planning.read(lake, f"{folder}/{name}")
        mine = tuple(f for f in files if f.rsplit("/", 1)[-1].startswith(f"{plan.id}-"))
        by_kind[plan.payload_kind] = by_kind.get(plan.payload_kind, ()) + mine
    files_by_kind = {kind: paths for kind, paths in by_kind.items() if paths}
    if not files_by_kind and unfinished:
        raise RefusedError(
            f"The archive of {queue!r} in {lake.place} is not finished.",
            why=f"{unfinished} of its plans were cut off.",
            next_step=f"Finish it with: dbq-console pipeline archive {queue}",
        )
    return Archived(connection, schema, queue, files_by_kind, unfinished)
