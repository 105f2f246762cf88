"""Delayed messages (ScheduleMessageService).

* `delay_levels`    how long each level waits
* `waiting`         puts a message into the queue of its level
* `kept_messages`   messages that retention must not remove, because they still wait
* `delay_service`   delivery of due messages by the leader
"""
