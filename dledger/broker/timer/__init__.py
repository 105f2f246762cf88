"""Timer messages, which are delivered at a given time (TimerMessageStore).

* `waiting`            when a message is due, by its properties
* `timer_wheel`        finds the messages that are due next, in the ConsumeQueue
* `timer_service`      delivers due messages on the leader, and stores old ones again before retention
* `recall_processor`   370 RECALL_MESSAGE: cancels a waiting message
"""
