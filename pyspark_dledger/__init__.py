"""The data source `dledger` where Spark looks for data sources by itself: in packages named `pyspark_*`.

So `spark.read.format("dledger")` works without `dledger.spark.session.register`. Filters are pushed down when
the session has `spark.sql.python.filterPushdown.enabled` and the option `pushdown` says so.
"""

from dledger.spark.source import DledgerSource as DefaultSource

__all__ = ["DefaultSource"]
