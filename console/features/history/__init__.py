"""What was, and what is usual: recordings, a queue's history, forecasts, replays.

`recorder` writes what the screens and `record` see into `segments`, `reader` reads them and, by
`lake_tables`, the rollups and forecasts of a lake. Nothing of a payload, a title or a filter is
recorded, which may hold parts of them; of errors only what the doctor's summaries quote, masked as
on the screen.
"""

from console.features import Feature

FEATURE = Feature()
