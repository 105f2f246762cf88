"""Pulls of consumers.

* `pull_processor`      the pull codes
* `pull_hold`           pulls that wait for messages
* `subscription_wait`   pulls that wait for their client's heartbeat
"""
