"""The recorder's samples, findings and waits as tables of minutes, hours and days.

`segment_files` finds the segments and reads them, `tables` makes tables of them (pure functions of
Arrow tables), `day` is the task that writes those of a day, `job` says which days are due,
`forecast` makes of the hours of the last weeks what to expect of each hour of the week.
"""
