"""Audit of log stores: checks the content that is on disk. It only reads, and never changes a store.

A pure scanner of one segment (`walk`, `scan`), a picture of a store directory (`store_directory`), and the
comparison of replicas (`compare`) from the scanner's rows. `local` runs all of it in one process;
`dledger.spark` distributes the same functions; both give the same report.

Design (hierarchical, measured against grouping every entry): each segment is scanned where it is stored and
gives a few rows: its faults, a digest for each block of 1024 indexes, and the indexes that it covers.
Replicas are compared by digests; only blocks with different digests are read again, entry by entry.

* `findings`   codes, severities, advice, exit codes; the rows that a scan yields
* `store_directory`   a store directory: replicas, segments, index files, identity, checkpoint
* `walk`       pure: bytes of a segment -> entries, with their damage
* `digests`    additive digest of a block
* `unit_files` files of fixed-size units
* `derived`    index files and ConsumeQueue files, compared with the log
* `scan`       one segment, or the side files of one replica -> rows
* `coverage`   which indexes a replica holds; continuity between its segments
* `compare`    rows of all replicas -> report
* `report`     the report as JSON and as text
* `replicas`   a replica as engines see it, wherever it lies
* `local`      the functions `verify` and `compare`, without Spark
* `crash`      exit code of a crash
"""
