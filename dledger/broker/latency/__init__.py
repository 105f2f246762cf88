"""How a broker protects itself when it is overloaded.

* `fast_failure`   sends are refused at once while the log is stalled (BrokerFastFailure)
"""
