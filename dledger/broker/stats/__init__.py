"""Statistics of this broker (BrokerStatsManager, StoreStatsService), in memory, for one leadership.

* `stats_item`        one statistic over the last minute, hour and day
* `broker_stats`      the table of statistics
* `stats_processor`   the codes that show statistics, and the offsets of topics and groups
"""
