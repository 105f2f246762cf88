"""Health and metrics.

* `server`   /health, /livez, /readyz and /metrics
* `health`   what the first three say
"""
