"""Limits on how many messages producers may send and consumers may read in a second.

* `token_bucket`: one bucket, and a table with a limited number of buckets
* `rate_limits`: the limits in the settings (RatelimitPipeline)
"""
