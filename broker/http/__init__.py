"""Health and metrics.

* `server`   /health and /metrics
"""
