"""Pulls of consumers.

* `pull_processor`: the requests that pull messages
* `pull_hold`: pulls that wait for messages
* `subscription_wait`: pulls that wait for their client's heartbeat
* `stranded_pulls`: answers pulls that wait at a leader that was lost
* `suggestions`: tells a client which broker it should pull from next
"""
