"""Administration of a broker.

* `admin_processor`        runtime figures and settings
* `query_processor`        messages by key, units of ConsumeQueues
* `replication_processor`  the log, and how far the other brokers are
* `tables_processor`       tables of the state
* `refusals`               unsupported requests and the reasons; `refusal_processor` answers them
"""
