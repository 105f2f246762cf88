"""Limits on how many messages per second producers may send and consumers may read.

* `token_bucket`: one bucket, and a table with a limited number of buckets
* `rate_limits`: the limits in the settings (RatelimitPipeline)
"""
