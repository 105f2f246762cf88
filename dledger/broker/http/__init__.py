"""Health and metrics.

* `server`   /health, /livez, /readyz and /metrics
* `health`   the content of the first three
"""
