"""Delayed messages (ScheduleMessageService).

* `delay_levels`    how long each level waits
* `delay_service`   what the leader delivers when it is due
"""
