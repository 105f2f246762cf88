"""Jobs on a log other than the audit. Each is a function here and a command of `dledger spark`:

* `archive`: topics to Parquet, by topic and day; it can be resumed, and every message is archived exactly
  once
* `replay`: send the messages of an archive, or of a range of a log, to a topic again
* `statistics`: rates, sizes, keys, tags, and latencies from the birth of a message to its storing
* `lag`: how many messages consumer groups have not consumed yet, now and in the past
* `accounting`: check that produced = stored = consumed

All of them read messages through `log_source`: from store directories, live brokers or an archive.
"""
