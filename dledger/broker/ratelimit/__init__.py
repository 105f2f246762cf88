"""How much producers may send and consumers may read.

* `token_bucket`   one bucket, and a bounded table of them
* `rate_limits`    the limits of the settings (RatelimitPipeline)
"""
