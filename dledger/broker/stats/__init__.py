"""What went through this broker (BrokerStatsManager, StoreStatsService). In memory: it is of one leadership.

* `stats_item`        one number over the last minute, hour and day
* `broker_stats`      the table of them
* `stats_processor`   the codes that show them, and where topics and groups stand
"""
