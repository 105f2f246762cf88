"""Health and metrics of a broker over HTTP.

* `server`: the paths /health, /livez, /readyz and /metrics
* `consumer_metrics`: metrics of consumer groups
"""
