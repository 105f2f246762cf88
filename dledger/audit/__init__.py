"""Audit of log stores: checks the content that is on disk. It only reads, and never changes a store.

The audit reads what is in a store directory (`store_directory`), scans each segment (`walk`, `scan`), and
compares the replicas by the results of the scans (`compare`). `local` runs all of it in one process;
`dledger.spark` distributes the same functions; both give the same report.

Each segment is scanned where it is stored. The result is a list of a few rows: its faults, a digest for each
block of 1024 indexes, and the indexes that it covers. Replicas are compared by digests. Only blocks with
different digests are read again, entry by entry. This needs far fewer rows than grouping every entry.

* `findings`   codes, severities, advice, exit codes; the kinds of rows that a scan yields
* `store_directory`   a store directory: replicas, segments, index files, identity, checkpoint
* `small_files`   reads identity, members, checkpoint and what other files say about the log
* `side_checks`   checks the small files: hard state, `lock`, members, `begins`, snapshots
* `state_sense`   checks that a replicated state makes sense by itself
* `walk`       finds the entries in the bytes of a segment, and their damage; pure
* `digests`    additive digest of a block
* `unit_files` files of fixed-size units
* `derived`    index files and ConsumeQueue files, compared with the log
* `scan`       makes rows from one segment, or from the files beside the segments of one replica
* `coverage`   which indexes a replica holds; continuity between its segments
* `compare`    makes the report from the rows of all replicas
* `report`     the report as JSON and as text
* `replicas`   the interface of a replica, wherever it is stored
* `local`      the functions `verify` and `compare`, without Spark
* `crash`      exit code after a crash
"""
