"""Spark jobs on archives and history.

They need the extra [pipeline] and Java. A lake is a folder, or a URI such as
s3://bucket/folder, of Delta Lake tables. Under spark-submit its master is used. The care
of a lake (compact, expire, erase, lake) needs no Java.

\b
Examples:
  dbq-console pipeline archive jobs --lake /srv/lake --older 1d --dry-run
  dbq-console pipeline rollup --lake /srv/lake
  dbq-console pipeline lake --lake /srv/lake
  dbq-console pipeline runs
"""

import click

from console.cli.lists import list_command
from console.features.lake.cli.care import compact, erase, expire, show_lake
from console.features.lake.cli.jobs import archive, replay, rollup, verify
from console.features.lake.runs_view import VIEW

COMMAND = click.Group(
    "pipeline",
    [archive, rollup, verify, replay, compact, expire, erase, show_lake, list_command(VIEW)],
    help=__doc__,
)
