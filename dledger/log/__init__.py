"""The log on disk: segments of entries, their index, and the small file of term and vote.

* `store`           the log as a node uses it: append, group commit, read, cut
* `appender`        how a leader seals entries (gives them index, pos and CRCs); `store_clock`: their time
* `incoming`        what a follower checks of the entries that a leader sent
* `segments`, `pool`   files of the log, and spare ones made in advance
* `index_files`, `index_units`   one unit per entry, with its position in the log
* `writes`, `flushing`, `io_lock`   writing and fsync by a worker, many entries at a time
* `reading`, `reader`, `hot_tail`   reading entries, from memory where they are recent
* `recovery`, `recovery_scan`   opening a store after a stop or a crash
* `faulty`, `scrub`, `repair_writer`   corrupt entries: recorded, searched for, and repaired
* `base`            where the log begins; `retention` decides which old segments are removed
* `hard_state`      term and vote
* `terms`           where each term starts
* `poison`          the marker of a store whose disk failed
"""
