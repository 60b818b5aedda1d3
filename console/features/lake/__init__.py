"""Archives and history too large for one table or one machine, in Delta Lake tables, by Spark.

The only package that imports pyspark. The archive and rollup jobs are plain Python: whatever runs
their tasks is passed to them, so that they run, and are tested, without Spark as well.
"""

from console.features import CommandKey, Feature

FEATURE = Feature(needs=("history",), keys=(CommandKey("P", "runs", "the runs of the pipeline"),))
