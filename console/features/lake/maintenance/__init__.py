"""Care of a lake's table of messages: compact, expire, erase, and what it has.

No Spark: files are read and written by threads of this process, and a commit of the table exchanges
them. A file is written and read back before a commit names it.
"""
