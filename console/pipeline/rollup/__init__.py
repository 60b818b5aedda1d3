"""The recorder's samples, findings and waits as tables of minutes, hours and days.

`segment_files` finds the segments and reads them, `tables` makes tables of them (pure functions of
DataFrames), `job` puts these together and writes.
"""
