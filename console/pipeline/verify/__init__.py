"""Logs of pushes and pops, compared at scale: lost, doubled, damaged, out of order.

`order` is the judgement of order as plain Python, `job` spreads it and the counts over Spark.
"""
