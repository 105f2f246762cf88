"""Topics and consumer groups.

* `topic_processor`   the codes that create, delete and show topics and groups
* `topic_creation`    rules of creation, on request and automatic
* `deletion`          rules of deletion; `deletion_service` forgets deletions in the end;
  `deleted_messages`  messages on their way to a topic that was deleted
* `shown`             groups as RocketMQ shows them
* `topic_table`       all topics, encoded for registration
* `topic_names`       rules for names, and the topics that every broker has
"""
