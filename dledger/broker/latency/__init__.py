"""What a broker does that is too busy.

* `fast_failure`   sends are refused at once while the log does not move (BrokerFastFailure)
"""
