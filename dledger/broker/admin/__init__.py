"""Processors of requests that operators send to a broker.

* `admin_processor`: figures and settings of the running broker
* `query_processor`: search for messages by key, and reading units of a ConsumeQueue (its index records of 20
  bytes)
* `replication_processor`: the replicated log, and how much of it the other brokers have
* `tables_processor`: tables of the replicated state
* `refusals`: unsupported requests and the reasons; `refusal_processor` answers them
"""
