"""Timer messages, which come at a time of their own (TimerMessageStore).

* `waiting`            when a message is due, by its properties
* `timer_wheel`        which of those that wait are due next, found in the ConsumeQueue
* `timer_service`      what the leader delivers when it is due, and puts again before retention takes it
* `recall_processor`   370 RECALL_MESSAGE: one that waits never comes
"""
