"""`dledger import`, `export` and `mirror`: convert stores of Apache RocketMQ into stores of this project
and back, and copy topics between running clusters.

* `source_log`     records of a CommitLog, a DLedger log, or a DLedger log after a CommitLog
* `source_config`  `config/*.json` and ends of ConsumeQueues
* `survey`         what a source holds: read and checked before anything is written
* `store_writer`   several equal stores, written together, so that an interrupted run can resume
* `importing`      a source becomes the stores of a new group
* `exporting`      a store becomes those of a group of Apache's
* `apache_views`   ConsumeQueues and IndexFiles of an export
* `mirror`         copies topics of a running cluster to another
* `mirrored_queues`  which message is the copy of which
* `mirrored_groups`  where groups resume in the new cluster
* `mirror_check`     what a mirror still has to do
* `progress`       progress on standard error
* `cli`            arguments and output

A broker of this project never opens a store of Apache's in place (decision 0035).
"""
