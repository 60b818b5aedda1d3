"""archive: what a queue is done with goes into the lake, and is then deleted where it was.

`plan` says which keys, once; `export` writes them, range by range; `files` reads the files back;
`delete` takes exactly those rows out of the database, and out of the lake what was not there to be
deleted, because somebody had restored it; `job` is the whole of a run. Killed anywhere and run
again, it goes on: the lake and the database together have everything, and nothing twice.
"""
