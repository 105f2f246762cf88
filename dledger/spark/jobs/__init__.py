"""Jobs on a log other than the audit. Each is a function here and a command of `dledger spark`:

* `archive`     topics to Parquet, by topic and day, resumable, every message exactly once
* `replay`      an archive (or a range of a log) back into a topic
* `statistics`  rates, sizes, keys, tags, latencies from born to stored
* `lag`         how many messages consumer groups have still before them, now and in the past
* `accounting`  produced = stored = consumed

All of them read messages through `log_source`: store directories, live brokers or an archive.
"""
