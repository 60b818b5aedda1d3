"""Record an existing table as a queue, for monitoring and for verbs.

With --design, the table NAME, whoever made it. Roles: id pushed_at due_at claimed_at claimed_by
status error attempts payload done_at; for a ring also slot reference_count push_sequence
pop_sequence size. Figures that need a missing role are shown as `?`.

With --preset, a library's table, under a NAME of your choice: all that is in it, or one --queue
of it (pgqueuer: an entrypoint; graphile-worker: a task; pgmq: a queue, by default NAME).
`discover` lists them; a preset of your own must be trusted (`preset trust`).

\b
Examples:
  dbq-console adopt mails --design fifo --map id=mail_id --map payload=body
  dbq-console adopt jobs --design claim --map id=job_id --map claimed_at=started \\
    --map payload=body --map pushed_at=created
  dbq-console adopt jobs --preset procrastinate
  dbq-console adopt mails --preset pgqueuer --queue send_mail
  dbq-console adopt orders --preset pgmq
"""

from dataclasses import replace
from typing import Any

from console.cli.context import Call
from console.features.presets.verbs import ADOPT, adopted


def _run(call: Call, /, **given: Any) -> None:
    done = adopted(call.database(), given, call.schema)
    call.answer(done.data, done.lines)


COMMAND = replace(ADOPT, run=_run, help=__doc__)
