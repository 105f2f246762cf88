"""Delayed messages (ScheduleMessageService).

* `delay_levels`    how long the messages of each level wait
* `waiting`         puts a message into the queue of its level
* `kept_messages`   finds waiting messages, which retention must not remove
* `delivery_pace`   how fast messages are delivered when many are due at once
* `delay_service`   delivery of due messages by the leader
"""
