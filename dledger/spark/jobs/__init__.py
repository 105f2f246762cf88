"""What people want to do with a log besides auditing it. Each is a function here and a command of
`dledger spark`:

* `archive`     topics to Parquet, by topic and day, resumable, every message exactly once
* `replay`      an archive (or a range of a log) back into a topic
* `statistics`  rates, sizes, keys, tags, latencies from born to stored
* `lag`         what consumer groups had still before them, and when
* `accounting`  produced = stored = consumed

All read messages through `log_source`: store directories, live brokers or an archive.
"""
