"""`dledger import`, `export` and `mirror`: stores of Apache RocketMQ become ours, and ours become theirs.

* `source_log`     records of a CommitLog, of a DLedger log, and of one behind the other
* `source_config`  `config/*.json` and ends of ConsumeQueues
* `survey`         what a source holds: read and checked before anything is written
* `store_writer`   several equal stores, written together, so that an interrupted run can go on
* `importing`      a source becomes the stores of a new group
* `exporting`      a store becomes those of a group of Apache's
* `apache_views`   ConsumeQueues and IndexFiles of an export
* `mirror`         copies topics of a running cluster to another
* `mirrored_queues`  which message is the copy of which
* `mirrored_groups`  where the groups of a mirror go on
* `mirror_check`     what a mirror still has to do
* `progress`       progress on standard error
* `cli`            arguments and output

A store of Apache's is never opened in place (decision 0035).
"""
