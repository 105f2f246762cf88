"""Timer messages, which are delivered at a given time (TimerMessageStore).

* `waiting`            finds out from the properties of a message when it is due
* `timer_wheel`        finds the messages that are due next, in the ConsumeQueue
* `timer_service`      delivers due messages on the leader; stores old messages again before retention removes
  them
* `recall_processor`   370 RECALL_MESSAGE: cancels a waiting message
"""
