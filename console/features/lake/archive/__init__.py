"""Archive: move the rows that a queue no longer needs into the lake.

`plan` chooses the ranges of keys; `export` writes each to Parquet; `files` reads them back;
`delete` deletes exactly those rows from the database, and withdraws from the lake any that could
not be deleted; `job` is a whole run. Killed at any point and run again, it continues: nothing is
lost, nothing is there twice.
"""
