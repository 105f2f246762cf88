"""Byte layouts of everything that is written to disk and read by others. Pure functions on bytes; no I/O, no
clock.

Everything is big-endian. `docs/reference/formats.md` describes each layout in words.

* `entry`          DLedger log entry (48-byte header) and index unit (32 bytes)
* `record`         CommitLog message record, the body of an entry
* `properties`     message properties text
* `message_ids`    offset message id, unique id, tag code (Java's string hash)
* `consume_queue`  20-byte ConsumeQueue unit
* `index_file`     IndexFile: messages by key
* `store_files`    names and small files of a store directory: identity, hard state, checkpoint
* `lock_file`      how the last run of a node was, and how far it had written
* `snapshot`       manifest and parts of a boundary snapshot
* `state`          the replicated state (topics, groups, offsets, queue bounds) and operations that change it
* `state_file`     the replicated state as a file, so that a start does not read the whole log
"""
