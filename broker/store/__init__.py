"""Derived views of the log: can be thrown away and rebuilt (architecture rule 1).

* `state`          topics, groups, consumer offsets, bounds of queues: a pure function of the log
* `consume_queue`  position, size and tag code of each message of a queue: memory tail and files
* `dispatch`       applies committed entries to both
* `snapshot`       state on disk, so that a start does not read the whole log
* `message_store`  reading by queue offset, time and position; flushing and snapshots in the background
"""
