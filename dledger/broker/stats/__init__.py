"""Statistics of this broker (BrokerStatsManager, StoreStatsService). They are in memory, and start at zero
when this node begins to lead.

* `stats_item`        one statistic over the last minute, hour and day
* `broker_stats`      the table of statistics
* `stats_processor`   requests that show statistics, and the offsets of topics and groups
"""
