"""The Spark pipeline: archives and history too large for one table or one machine.

The only package that knows pyspark, and only `session` imports it: a job is plain Python, handed
the tasks to run, so that each runs and is tested without Spark as well.
"""
