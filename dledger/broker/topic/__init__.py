"""Topics and consumer groups.

* `topic_processor`   the codes that create and show them
* `topic_creation`    rules of creation, by request and by itself
* `deletion`          rules of deletion; `deletion_service` what is forgotten in the end;
  `deleted_messages`  messages on their way to a topic that was deleted
* `shown`             groups as RocketMQ shows them
* `topic_table`       all topics as they are registered
* `topic_names`       which names are allowed, which topics every broker has
"""
