"""Delayed messages (ScheduleMessageService).

* `delay_levels`    how long each level waits
* `waiting`         where a message waits
* `kept_messages`   what retention leaves, as it waits
* `delay_service`   what the leader delivers when it is due
"""
