"""The recorder's samples, findings and waits as tables of minutes, hours and days.

`found` looks what segments there are, `reading` reads them in the tasks, `tables` makes tables of
them (pure functions of DataFrames), `job` puts these together and writes.
"""
