"""How a broker protects itself when it is overloaded.

* `fast_failure`: refuses sends at once while the log is stalled (BrokerFastFailure)
* `slow_consumers`: disables groups that read far behind the end of the log
"""
