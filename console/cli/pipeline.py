"""Verbs of the pipeline: archive, rollup, replay, verify, each with Spark in this process; runs."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from console.cli import pipeline_jobs, pipeline_runs
from console.cli.context import (
    DURATION,
    Call,
    Rights,
    confirmation,
    verb_options,
)
from console.cli.pipeline_confirm import confirmed
from console.cli.pipeline_progress import progress
from console.cli.pipeline_record import Job, about
from console.cli.streams import narrate

if TYPE_CHECKING:
    from console.pipeline.archive.job import Done

_WEEK = 7 * 86_400.0


@click.group()
def pipeline() -> None:
    """Jobs on archives and history with Spark; they need the extra [pipeline] and a Java.

    A lake is a folder, or a URI such as s3://bucket/folder, of Parquet files and their manifests.
    Under spark-submit its master is used.

    \b
    Examples:
      dbq-console pipeline archive jobs --lake /srv/lake --done-older 1d --dry-run
      dbq-console pipeline rollup --lake /srv/lake
      dbq-console pipeline runs
    """


@pipeline.command(cls=Job)
@click.argument("name")
@click.option("--lake", metavar="PATH", help="Else: the folder `lake` in this user's state.")
@click.option("--older", type=DURATION, default=0.0, metavar="T", help="Only rows so old. [0s]")
@click.option(
    "--retention",
    type=DURATION,
    default=_WEEK,
    metavar="T",
    help="What was purged or archived stays so long, for restore. [7d]",
)
@click.option(
    "--done-older", type=DURATION, metavar="T", help="Also done rows of status and split, so old."
)
@click.option("--master", metavar="M", help="Spark's master. [local[*]]")
@confirmation
@verb_options
def archive(
    call: Call,
    name: str,
    lake: str | None,
    master: str | None,
    yes: str | None,
    dry_run: bool,
    **ages: Any,
) -> None:
    """Drain a queue's archive into Parquet files: written, read back, and only then deleted.

    Cut off anywhere and run again, it goes on; nothing is lost, nothing is there twice. A row that
    is restored meanwhile stays in the database and leaves the lake again.

    \b
    Examples:
      dbq-console pipeline archive jobs --lake /srv/lake --dry-run
      dbq-console pipeline archive jobs --lake /srv/lake --done-older 1d --yes jobs
    """
    from console.pipeline.session import OnSpark, require_extra, session  # noqa: PLC0415

    require_extra()
    from console.pipeline.archive import job  # noqa: PLC0415  # verbs shall start at once
    from console.pipeline.archive.plan import Wanted  # noqa: PLC0415
    from console.pipeline.lake import Lake, default_place  # noqa: PLC0415

    database = call.database(Rights.OPERATOR, job.VERB)
    queue = call.find(database, name)
    opened = Lake(lake or default_place())
    about(database=database, lake=opened.place)
    offered = job.offer(database, queue, opened, Wanted(**ages))
    nothing = not offered.rows and offered.unfinished is None
    if not confirmed(
        call,
        database,
        job.VERB,
        offered,
        yes,
        messages=offered.rows,
        dry_run=dry_run or nothing,
    ):
        return
    if not call.json:
        narrate("\n".join(offered.lines()))
    with (
        session(f"{job.VERB} {name}", master) as spark,
        progress(call, f"archive {name}") as told,
    ):
        done = job.archive(database, offered, opened, OnSpark(spark), told=told)
    call.acted(offered.as_json(), _result(done), [line for one in done for line in one.lines()])


def _result(done: "list[Done]") -> Mapping[str, Any]:
    """All plans that this run carried out, and what they come to together."""
    figures = ("exported", "deleted", "withdrawn", "files", "bytes")
    total = {figure: sum(getattr(one, figure) for one in done) for figure in figures}
    last = done[-1] if done else None
    return {
        "plan": None if last is None else last.plan,
        **total,
        "rows_per_second": {} if last is None else last.rows_per_second,
        "plans": [one.as_json() for one in done],
    }


for command in (*pipeline_jobs.COMMANDS, *pipeline_runs.COMMANDS):
    pipeline.add_command(command)

COMMANDS = (pipeline,)
