"""Roll up the recorder's samples, findings and waits into tables of minutes, hours and days.

`segment_files` finds and reads the segments, `tables` computes the tables (pure functions of Arrow
tables), `day` is the task that writes a day's tables, `job` chooses the days, `forecast` computes
from the hours of the last weeks what to expect of each hour of the week.
"""
